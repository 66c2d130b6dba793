#include "engine/cache/image_blocks.h"

#include <algorithm>
#include <limits>

namespace turbomind {

namespace {

PrefixKey key_of(const ImageGroup& group, const PrefixKey& sequence) {
  const PrefixScope scope(sequence.scope.cache_namespace, sequence.scope.variant, true);
  return {scope, group.tokens(), group.keys(), sequence.lora_name, sequence.salt};
}

int group_of(const BlockCache& cache) {
  return cache.plan().group_of(MemoryKind::kCross);
}

}  // namespace

ImageBlocks::ImageBlocks(const std::vector<ImageGroup>& groups) {
  for (size_t i = 0; i < groups.size(); ++i) {
    Entry& entry = all_.emplace_back();
    entry.group = &groups[i];
    entry.end = i + 1 < groups.size() ? groups[i + 1].begin() : std::numeric_limits<int>::max();
  }
}

void ImageBlocks::match(BlockCache& cache, const PrefixKey& sequence, int cached) {
  const int index = group_of(cache);
  for (Entry& entry : all_) {
    entry.is_passed = entry.end <= cached;
    if (entry.is_passed) continue;
    const ImageGroup& group = *entry.group;
    match_chain(cache, key_of(group, sequence), static_cast<int>(group.tokens().size()), entry.blocks, index);
    list_pages(cache, entry, 0);
    entry.written = std::min(static_cast<int>(entry.blocks.size()) * cache.group(index).block_len, group.rows());
  }
}

int ImageBlocks::missing_pages(const BlockCache& cache) const {
  int missing = 0;
  for (const Entry& entry : all_) {
    if (!entry.is_passed) missing += entry.group->block_count() - static_cast<int>(entry.blocks.size());
  }
  return missing > 0 ? missing * cache.group(group_of(cache)).pages : 0;
}

bool ImageBlocks::grow(BlockCache& cache, Entry& entry) {
  const size_t first = entry.blocks.size();
  const auto count = static_cast<size_t>(entry.group->block_count());
  for (int32_t block = 0; entry.blocks.size() < count && block != kNoBlock;) {
    if (block = cache.allocate(group_of(cache)); block != kNoBlock) entry.blocks.push_back(block);
  }
  list_pages(cache, entry, first);
  return entry.blocks.size() == count;
}

void ImageBlocks::list_pages(const BlockCache& cache, Entry& entry, size_t first) {
  entry.tables.resize(static_cast<size_t>(cache.group(group_of(cache)).pages));
  for (size_t page = 0; page < entry.tables.size(); ++page) {
    entry.tables[page].resize(entry.blocks.size());
    for (size_t i = first; i < entry.blocks.size(); ++i) {
      entry.tables[page][i] = cache.pages(entry.blocks[i])[page];
    }
  }
}

std::vector<ImageBlocks::Entry*> ImageBlocks::unwritten(int begin, int end) {
  std::vector<Entry*> found;
  for (Entry& entry : all_) {
    if (entry.group->begin() < end && entry.end > begin && !entry.is_written()) found.push_back(&entry);
  }
  return found;
}

void ImageBlocks::commit(BlockCache& cache, const PrefixKey& sequence) {
  for (Entry& entry : all_) {
    if (entry.planned == 0) continue;
    entry.written += entry.planned;
    entry.planned = 0;
    if (!entry.is_written()) continue;
    const PrefixKey key = key_of(*entry.group, sequence);
    for (int index = 0; index < entry.group->block_count(); ++index) {
      publish(cache, key, index, entry.blocks);
    }
    list_pages(cache, entry, 0);
  }
}

void ImageBlocks::pass(BlockCache& cache, int cached, Keep keep) {
  for (Entry& entry : all_) {
    if (entry.is_passed || entry.end > cached) continue;
    entry.is_passed = true;
    cache.release(entry.blocks, keep);
  }
}

void ImageBlocks::release(BlockCache& cache, Keep keep) {
  for (Entry& entry : all_) {
    cache.release(entry.blocks, keep);
    entry.is_passed = false;
    entry.written = 0;
    entry.planned = 0;
  }
}

void ImageBlocks::add_kv_writes(std::vector<EncoderKvWrite>& kv_writes) const {
  for (const Entry& entry : all_) {
    if (entry.planned > 0) kv_writes.push_back({entry.group, entry.written, entry.planned, &entry.tables});
  }
}

void ImageBlocks::add_cross_spans(int begin, int end, int first_token,
                                  std::vector<CrossAttentionSpan>& cross_spans) const {
  for (const Entry& entry : all_) {
    const int last = std::min(end, entry.end);
    for (int token = std::max(begin, entry.group->begin()); token < last;) {
      const int next = entry.group->end_of_visible(token, last);
      cross_spans.push_back(
          {first_token + token - begin, next - token, entry.group->tokens_seen_by(token), &entry.tables});
      token = next;
    }
  }
}

void ImageBlocks::add_blocks(std::vector<int32_t>& blocks) const {
  for (const Entry& entry : all_) blocks.insert(blocks.end(), entry.blocks.begin(), entry.blocks.end());
}

}  // namespace turbomind
