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
    ImageAllocation& allocation = all_.emplace_back();
    allocation.group = &groups[i];
    allocation.end = i + 1 < groups.size() ? groups[i + 1].begin() : std::numeric_limits<int>::max();
  }
}

void ImageBlocks::match(BlockCache& cache, const PrefixKey& sequence, int cached) {
  const int index = group_of(cache);
  for (ImageAllocation& allocation : all_) {
    allocation.is_passed = allocation.end <= cached;
    if (allocation.is_passed) continue;
    const ImageGroup& group = *allocation.group;
    match_chain(cache, key_of(group, sequence), static_cast<int>(group.tokens().size()), allocation.blocks, index);
    list_pages(cache, allocation, 0);
    allocation.written =
        std::min(static_cast<int>(allocation.blocks.size()) * cache.group(index).block_len, group.rows());
  }
}

int ImageBlocks::missing_pages(const BlockCache& cache) const {
  int missing = 0;
  for (const ImageAllocation& allocation : all_) {
    if (!allocation.is_passed) missing += allocation.group->block_count() - static_cast<int>(allocation.blocks.size());
  }
  return missing > 0 ? missing * cache.group(group_of(cache)).pages : 0;
}

bool ImageBlocks::grow(BlockCache& cache, ImageAllocation& allocation) {
  const size_t first = allocation.blocks.size();
  const auto count = static_cast<size_t>(allocation.group->block_count());
  for (int32_t block = 0; allocation.blocks.size() < count && block != kNoBlock;) {
    if (block = cache.allocate(group_of(cache)); block != kNoBlock) allocation.blocks.push_back(block);
  }
  list_pages(cache, allocation, first);
  return allocation.blocks.size() == count;
}

void ImageBlocks::list_pages(const BlockCache& cache, ImageAllocation& allocation, size_t first) {
  allocation.tables.resize(static_cast<size_t>(cache.group(group_of(cache)).pages));
  for (size_t page = 0; page < allocation.tables.size(); ++page) {
    allocation.tables[page].resize(allocation.blocks.size());
    for (size_t i = first; i < allocation.blocks.size(); ++i) {
      allocation.tables[page][i] = cache.pages(allocation.blocks[i])[page];
    }
  }
}

std::vector<ImageBlocks::ImageAllocation*> ImageBlocks::unwritten(int begin, int end) {
  std::vector<ImageAllocation*> found;
  for (ImageAllocation& allocation : all_) {
    if (allocation.group->begin() < end && allocation.end > begin && !allocation.is_written())
      found.push_back(&allocation);
  }
  return found;
}

void ImageBlocks::commit(BlockCache& cache, const PrefixKey& sequence) {
  for (ImageAllocation& allocation : all_) {
    if (allocation.planned == 0) continue;
    allocation.written += allocation.planned;
    allocation.planned = 0;
    if (!allocation.is_written()) continue;
    const PrefixKey key = key_of(*allocation.group, sequence);
    for (int index = 0; index < allocation.group->block_count(); ++index) {
      publish(cache, key, index, allocation.blocks);
    }
    list_pages(cache, allocation, 0);
  }
}

void ImageBlocks::pass(BlockCache& cache, int cached, Keep keep) {
  for (ImageAllocation& allocation : all_) {
    if (allocation.is_passed || allocation.end > cached) continue;
    allocation.is_passed = true;
    cache.release(allocation.blocks, keep);
  }
}

void ImageBlocks::release(BlockCache& cache, Keep keep) {
  for (ImageAllocation& allocation : all_) {
    cache.release(allocation.blocks, keep);
    allocation.is_passed = false;
    allocation.written = 0;
    allocation.planned = 0;
  }
}

void ImageBlocks::add_kv_writes(std::vector<EncoderKvWrite>& kv_writes) const {
  for (const ImageAllocation& allocation : all_) {
    if (allocation.planned > 0)
      kv_writes.push_back({allocation.group, allocation.written, allocation.planned, &allocation.tables});
  }
}

void ImageBlocks::add_cross_spans(int begin, int end, int first_row,
                                  std::vector<CrossAttentionSpan>& cross_spans) const {
  for (const ImageAllocation& allocation : all_) {
    const int last = std::min(end, allocation.end);
    for (int token = std::max(begin, allocation.group->begin()); token < last;) {
      const int next = allocation.group->end_of_visible(token, last);
      cross_spans.push_back(
          {first_row + token - begin, next - token, allocation.group->rows_seen_by(token), &allocation.tables});
      token = next;
    }
  }
}

void ImageBlocks::add_blocks(std::vector<int32_t>& blocks) const {
  for (const ImageAllocation& allocation : all_)
    blocks.insert(blocks.end(), allocation.blocks.begin(), allocation.blocks.end());
}

}  // namespace turbomind
