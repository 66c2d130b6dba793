// Blocks of cache pages in two arenas: the device's pages, and the host's (numbers from page_count() on).
//
// A block belongs to a cache group and has as many pages as that group's blocks need (model/cache_plan.h); the number
// of its first page identifies it. All groups share the arenas. Sequences reference blocks of the device.
//
// Moves of pages are collected; the caller executes them in order before it writes anything planned after them.
//
// Used by the step thread only.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "model/cache_plan.h"

namespace turbomind {

inline constexpr int32_t kNoBlock = -1;

class BlockPool {
 public:
  BlockPool(CachePlan plan, const CacheSize& size);

  const CachePlan& plan() const { return plan_; }
  const CacheGroup& group(int index) const { return plan_.groups[static_cast<size_t>(index)]; }

  int page_count() const { return page_count_; }
  int free_count() const { return static_cast<int>(free_.size()); }
  int referenced_count() const { return referenced_pages_; }
  // Pages of the device that no sequence references.
  int available_count() const { return page_count_ - referenced_pages_; }
  int host_count() const { return static_cast<int>(blocks_.size()) - page_count_; }
  int host_used_count() const { return host_count() - static_cast<int>(host_free_.size()); }

  // Makes a block without references. kNoBlock: too few pages are free.
  int32_t make(int group, bool in_host = false);
  void free(int32_t block);
  void reference(int32_t block);
  // Drops a reference. True: it was the last. Throws Error(kInternal) for a block that is not referenced.
  bool drop(int32_t block);

  bool is_of_host(int32_t page) const { return page >= page_count_; }
  bool is_referenced(int32_t block) const { return at(block).references > 0; }
  int group_of(int32_t block) const { return at(block).group; }
  int pages_of(int32_t block) const { return group(at(block).group).pages; }
  const std::vector<int32_t>& pages(int32_t block) const { return at(block).pages; }

  // Copies a block's content to another block of its group.
  void copy(int32_t from, int32_t to);
  // Returns the page moves since the last call.
  std::vector<PageMove> take_moves() { return std::exchange(moves_, {}); }

  // Throws Error(kInternal) when pages are lost or used twice, or counts are wrong.
  void check_invariants() const;

 private:
  struct Block {
    int group = -1;  // -1: not the first page of a block
    int references = 0;
    std::vector<int32_t> pages;
  };

  Block& at(int32_t block) { return blocks_[static_cast<size_t>(block)]; }
  const Block& at(int32_t block) const { return blocks_[static_cast<size_t>(block)]; }

  const CachePlan plan_;
  const int page_count_;
  std::vector<Block> blocks_;  // by first page; device pages, then host pages
  std::vector<int32_t> free_;
  std::vector<int32_t> host_free_;
  std::vector<PageMove> moves_;
  int referenced_pages_ = 0;
};

}  // namespace turbomind
