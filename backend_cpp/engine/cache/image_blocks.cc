#include "engine/cache/image_blocks.h"

#include <algorithm>
#include <limits>

namespace turbomind {

namespace {

PrefixKey key_of(const ImageGroup& group, const PrefixKey& sequence) {
  const PrefixScope scope(sequence.scope.cache_namespace, sequence.scope.variant, true);
  return {scope, group.places(), group.keys(), sequence.lora_name, sequence.salt};
}

int group_of(const BlockCache& cache) {
  return cache.plan().group_of(MemoryKind::kCross);
}

}  // namespace

ImageBlocks::ImageBlocks(const std::vector<ImageGroup>& groups) {
  for (size_t i = 0; i < groups.size(); ++i) {
    Held& held = all_.emplace_back();
    held.group = &groups[i];
    held.end = i + 1 < groups.size() ? groups[i + 1].begin() : std::numeric_limits<int>::max();
  }
}

void ImageBlocks::match(BlockCache& cache, const PrefixKey& sequence, int cached) {
  const int index = group_of(cache);
  for (Held& held : all_) {
    held.is_passed = held.end <= cached;
    if (held.is_passed) continue;
    const ImageGroup& group = *held.group;
    match_chain(cache, key_of(group, sequence), static_cast<int>(group.places().size()), held.blocks, index);
    list_pages(cache, held, 0);
    held.written = std::min(static_cast<int>(held.blocks.size()) * cache.group(index).block_len, group.rows());
  }
}

int ImageBlocks::missing_pages(const BlockCache& cache) const {
  int missing = 0;
  for (const Held& held : all_) {
    if (!held.is_passed) missing += held.group->block_count() - static_cast<int>(held.blocks.size());
  }
  return missing > 0 ? missing * cache.group(group_of(cache)).pages : 0;
}

bool ImageBlocks::grow(BlockCache& cache, Held& held) {
  const size_t first = held.blocks.size();
  const auto count = static_cast<size_t>(held.group->block_count());
  for (int32_t block = 0; held.blocks.size() < count && block != kNoBlock;) {
    if (block = cache.allocate(group_of(cache)); block != kNoBlock) held.blocks.push_back(block);
  }
  list_pages(cache, held, first);
  return held.blocks.size() == count;
}

void ImageBlocks::list_pages(const BlockCache& cache, Held& held, size_t first) {
  held.tables.resize(static_cast<size_t>(cache.group(group_of(cache)).pages));
  for (size_t page = 0; page < held.tables.size(); ++page) {
    held.tables[page].resize(held.blocks.size());
    for (size_t i = first; i < held.blocks.size(); ++i) {
      held.tables[page][i] = cache.pages(held.blocks[i])[page];
    }
  }
}

std::vector<ImageBlocks::Held*> ImageBlocks::unwritten(int begin, int end) {
  std::vector<Held*> found;
  for (Held& held : all_) {
    if (held.group->begin() < end && held.end > begin && !held.is_written()) found.push_back(&held);
  }
  return found;
}

void ImageBlocks::commit(BlockCache& cache, const PrefixKey& sequence) {
  for (Held& held : all_) {
    if (held.planned == 0) continue;
    held.written += held.planned;
    held.planned = 0;
    if (!held.is_written()) continue;
    const PrefixKey key = key_of(*held.group, sequence);
    for (int index = 0; index < held.group->block_count(); ++index) {
      publish(cache, key, index, held.blocks);
    }
    list_pages(cache, held, 0);
  }
}

void ImageBlocks::pass(BlockCache& cache, int cached, Keep keep) {
  for (Held& held : all_) {
    if (held.is_passed || held.end > cached) continue;
    held.is_passed = true;
    cache.release(held.blocks, keep);
  }
}

void ImageBlocks::release(BlockCache& cache, Keep keep) {
  for (Held& held : all_) {
    cache.release(held.blocks, keep);
    held.is_passed = false;
    held.written = 0;
    held.planned = 0;
  }
}

void ImageBlocks::add_kv_writes(std::vector<EncoderKvWrite>& kv_writes) const {
  for (const Held& held : all_) {
    if (held.planned > 0) kv_writes.push_back({held.group, held.written, held.planned, &held.tables});
  }
}

void ImageBlocks::add_cross_spans(int begin, int end, int first_row,
                                  std::vector<CrossAttentionSpan>& cross_spans) const {
  for (const Held& held : all_) {
    const int last = std::min(end, held.end);
    for (int token = std::max(begin, held.group->begin()); token < last;) {
      const int next = held.group->end_of_sight(token, last);
      cross_spans.push_back({first_row + token - begin, next - token, held.group->rows_seen_by(token), &held.tables});
      token = next;
    }
  }
}

void ImageBlocks::add_blocks(std::vector<int32_t>& blocks) const {
  for (const Held& held : all_) blocks.insert(blocks.end(), held.blocks.begin(), held.blocks.end());
}

}  // namespace turbomind
