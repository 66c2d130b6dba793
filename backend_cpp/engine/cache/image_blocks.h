// Cross-attention cache blocks of a sequence's images, matched by image digest, and their written rows.
//
//   not allocated -- match, grow --> allocated --- plan, commit ---> written ---- pass ----> released
//      ^                                |
//      '----------- release ------------'
//
// Used by the step thread only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/cache/block_cache.h"
#include "model/image_group.h"
#include "model/model_runner.h"

namespace turbomind {

class ImageBlocks {
 public:
  // One group's blocks.
  struct Entry {
    const ImageGroup* group = nullptr;
    int end = 0;  // one past the last token that attends to it
    bool is_passed = false;
    std::vector<int32_t> blocks;  // of the cross-attention cache group
    PageTables tables;            // of `blocks`, for the runner
    int written = 0;              // rows
    int planned = 0;              // rows of the step being built or run

    bool is_written() const { return written == group->rows(); }
  };

  // `groups` must outlive this.
  explicit ImageBlocks(const std::vector<ImageGroup>& groups);

  // References the cached blocks of images that tokens from `cached` on attend to. `sequence`: the key of the tokens.
  void match(BlockCache& cache, const PrefixKey& sequence, int cached);
  // Pages needed in addition to those it has.
  int missing_pages(const BlockCache& cache) const;
  // Allocates all blocks of a group. False: too many pages are referenced; blocks allocated so far stay.
  static bool grow(BlockCache& cache, Entry& entry);
  // The unwritten groups that tokens [begin, end) attend to, in order.
  std::vector<Entry*> unwritten(int begin, int end);
  // Marks planned rows as written and publishes complete groups.
  void commit(BlockCache& cache, const PrefixKey& sequence);
  // Releases the groups that no token from `cached` on attends to.
  void pass(BlockCache& cache, int cached, Keep keep);
  void release(BlockCache& cache, Keep keep);

  // Appends the planned rows.
  void add_kv_writes(std::vector<EncoderKvWrite>& kv_writes) const;
  // Appends what tokens [begin, end) attend to; they are rows first_token, ... of a step.
  void add_cross_spans(int begin, int end, int first_token, std::vector<CrossAttentionSpan>& cross_spans) const;
  // Appends all referenced blocks.
  void add_blocks(std::vector<int32_t>& blocks) const;
  bool has_blocks() const {
    return std::ranges::any_of(all_, [](const Entry& entry) { return !entry.blocks.empty(); });
  }

 private:
  // Updates the page tables for blocks from index `first` on.
  static void list_pages(const BlockCache& cache, Entry& entry, size_t first);

  std::vector<Entry> all_;  // ascending
};

}  // namespace turbomind
