// The cache blocks of images that a sequence looks at by cross-attention, and how far their keys and values have been
// written. They are found again by the images' digests, as blocks of tokens are by their tokens.
//
//   not held ---- match ----> held in part, or whole --- take, plan, commit ---> written ---- pass ----> not needed
//      ^                                |
//      '----------- give_up ------------'
//
// Used by the step thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/schedule/block_cache.h"
#include "model/image_group.h"
#include "model/model_runner.h"

namespace turbomind {

class ImageBlocks {
 public:
  // One group's blocks.
  struct Held {
    const ImageGroup* group = nullptr;
    int end = 0;  // one past the last token that looks at it
    bool is_passed = false;
    std::vector<int32_t> blocks;  // of the cache's group of cross-attention
    PageTables tables;            // of `blocks`, for the runner
    int written = 0;              // rows
    int planned = 0;              // rows of the step being built or run

    bool is_written() const { return written == group->rows(); }
  };

  // `groups` must outlive this.
  explicit ImageBlocks(const std::vector<ImageGroup>& groups);

  // Takes what the cache holds of those that tokens from `cached` on look at. `sequence`: the key of the tokens.
  void match(BlockCache& cache, const PrefixKey& sequence, int cached);
  // Pages that will be needed in addition to those held.
  int missing_pages(const BlockCache& cache) const;
  // Makes all of a group's blocks. False: too many pages are referenced; those there are stay.
  static bool grow(BlockCache& cache, Held& held);
  // Those that tokens [begin, end) look at and that are not written, in their order.
  std::vector<Held*> unwritten(int begin, int end);
  // What was planned has begun: it counts as written, and groups that are whole are published.
  void commit(BlockCache& cache, const PrefixKey& sequence);
  // Gives back those that no token from `cached` on looks at.
  void pass(BlockCache& cache, int cached, Keep keep);
  void give_up(BlockCache& cache, Keep keep);

  // Adds the rows that are planned.
  void add_fills(std::vector<ImageFill>& fills) const;
  // Adds what tokens [begin, end) look at, which are rows first_row, ... of a step.
  void add_looks(int begin, int end, int first_row, std::vector<ImageLook>& looks) const;
  // All that are referenced.
  void add_blocks(std::vector<int32_t>& blocks) const;
  bool holds_any() const;

 private:
  // Lists the pages of its blocks from number `first` on.
  static void list_pages(const BlockCache& cache, Held& held, size_t first);

  std::vector<Held> all_;  // ascending
};

}  // namespace turbomind
