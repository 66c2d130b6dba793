// Prompts that administrators have pinned: what the cache has of them is the last of what nobody uses to leave memory.
//
// Requests come first: where those that run need all pages, pinned contents go too, so that whatever fits into the
// cache alone still completes. Pinned contents take at most a fourth of the pages.
//
// Used by the step thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/schedule/block_cache.h"

namespace turbomind {

class CachePins {
 public:
  // `blocks` must outlive it.
  explicit CachePins(BlockCache& blocks) : blocks_(blocks) {}

  // Pins what the cache has of the beginning of a prompt. Returns how many tokens that is. Throws Error
  // (kInvalidArgument) where it has nothing, and where the pins would take too much.
  int pin(const PrefixKey& prefix);
  // False: it is not pinned.
  bool unpin(const PrefixKey& prefix);
  void clear();
  // To be called before anything is given up for space.
  void refresh();

  int count() const { return static_cast<int>(pins_.size()); }
  // That hold pinned contents now.
  int page_count() const;
  int most_pages() const { return blocks_.page_count() / 4; }

 private:
  struct Pin {
    PrefixScope scope;
    std::vector<int32_t> tokens;
    std::vector<NodeId> nodes;  // held, from the first block on
  };

  std::vector<Pin>::iterator find(const PrefixKey& prefix);
  int pages_of(std::vector<NodeId> nodes) const;

  BlockCache& blocks_;
  std::vector<Pin> pins_;
  uint64_t seen_ = 0;  // BlockCache::last_use() when contents were touched last
};

}  // namespace turbomind
