// Observer interface of the block cache, for the disk tier and KV events.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/cache/prefix_key.h"
#include "engine/cache/prefix_tree.h"
#include "engine/events/cache_event.h"
#include "model/cache_plan.h"

namespace turbomind {

// Called on the step thread in the order of the changes.
class CacheObserver {
 public:
  virtual ~CacheObserver() = default;

  // ---- what later requests can match: of one group, observed_group() ----

  // `content` identifies the content of a block; ids are never reused.
  // Block `index` of a sequence with this prefix is on the device. `parent` is the content of the preceding block; for
  // the first block, an id that no content has.
  virtual void stored(uint64_t /*content*/, uint64_t /*parent*/, const PrefixKey& /*prefix*/, int /*index*/) {}
  // It moved to another tier.
  virtual void moved(uint64_t /*content*/, std::span<const int32_t> /*tokens*/, CacheTier /*to*/) {}
  // It was removed. Its children, even if still cached, can no longer be matched.
  virtual void removed(uint64_t /*content*/) {}
  // All contents were removed.
  virtual void cleared() {}

  // ---- what no sequence uses: of the groups that prefix hits need ----

  // A node's content is complete, and idle.
  virtual void idle(NodeId /*node*/, int /*group*/) {}
  // It is about to be lost for lack of room.
  virtual void leaving(NodeId /*node*/, int /*group*/) {}
};

// The contents themselves. A `block` is valid until the next call that may allocate.
class CacheSource {
 public:
  virtual ~CacheSource() = default;

  // Reports changes to `observer` too, which must outlive this.
  virtual void observe(CacheObserver& observer) = 0;
  virtual const CachePlan& plan() const = 0;
  virtual PrefixTree& tree() = 0;
  // The block of a group attached to a node, on the device or the host; kNoBlock: none.
  virtual int32_t stored(NodeId node, int group) const = 0;
  // The pages of a block, once these moves are executed.
  virtual const std::vector<int32_t>& pages(int32_t block) const = 0;
  virtual std::vector<PageMove> take_moves() = 0;
  // The nodes of what was stored and not removed, parents first.
  virtual std::vector<NodeId> stored_nodes() const = 0;
  // Marks a node's contents as most recently used; `is_pinned`: also as evicted last.
  virtual void touch(NodeId node, bool is_pinned = false) = 0;
  // Returns an idle block attached as block `index` of a prefix, after `parent`, or as its first `count` tokens. The
  // caller writes its content before any other call. kNoBlock: it exists already, or there is no room.
  virtual int32_t restore(const PrefixKey& prefix, int index, int count, NodeId parent, int group) = 0;
};

}  // namespace turbomind
