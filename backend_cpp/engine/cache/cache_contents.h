// Contents of the cache: the prefix tree, and the blocks that are attached to its nodes.
//
//   prefix tree                          attached:  all tokens   window   state
//   root -- t0..t3 -- t4..t7 -- a8..a11             0 1 4        - 9 6    - - 12
//                           \-- b8..b11             0 1 5        - 9 7    - - -
//
// A node has at most one block of each group. Where a group needs all blocks before a token, evicting a block also
// evicts the content after it, which could no longer be matched.
//
// With host pages, an idle block's content is swapped out to the host before its pages are reused, and swapped in when
// it is matched, which is cheaper than recomputation. No sequence references host blocks.
//
// Used by the step thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cache/block_pool.h"
#include "engine/cache/cache_observer.h"
#include "engine/cache/eviction_order.h"
#include "engine/cache/prefix_key.h"
#include "engine/cache/prefix_tree.h"
#include "engine/stats.h"

namespace turbomind {

class CacheContents {
 public:
  // `hash_mask`: of PrefixTree. The others must outlive it.
  CacheContents(BlockPool& pool, EvictionOrder& order, uint64_t hash_mask);

  PrefixTree& tree() { return tree_; }
  const PrefixTree& tree() const { return tree_; }
  // The block of a group attached to a node, on the device or the host; kNoBlock: none.
  int32_t stored(NodeId node, int group) const;
  // The node that a block is attached to; kNoNode: its content is not published.
  NodeId node_of(int32_t block) const { return nodes_[static_cast<size_t>(block)]; }
  // Whether blocks attached to a node are in the host's memory.
  bool is_in_host(NodeId node) const;
  const EvictionCounts& counts() const { return counts_; }

  // Makes a block of the device, for which it evicts others. kNoBlock: too many pages are referenced.
  int32_t allocate(int group);
  // Attaches a block to a node that has none of its group: block `index` of a prefix; without one, a snapshot.
  void attach(NodeId node, int32_t block, const PrefixKey* prefix = nullptr, int index = 0);
  // Attaches block `to` instead of the block `from` of the host, which is freed.
  void replace(int32_t from, int32_t to);
  // Swaps a block of the host in. Returns its new number; kNoBlock: too many pages are referenced.
  int32_t swap_in(int32_t block);
  // Moves an idle block's content to the host, or loses it if there is no room.
  void evict(int32_t block);
  // The same for all idle blocks of the device, those used last at the end.
  void evict_all();
  // Frees an attached block, with the contents that can no longer be matched.
  void lose(int32_t block);

  // Frees the idle contents of a node, of all nodes of a namespace, and of all nodes.
  void evict_node(NodeId node) { evict_blocks(idle({node})); }
  void evict_namespace(uint64_t cache_namespace) { evict_blocks(idle(tree_.of_namespace(cache_namespace))); }
  void evict_unused() { evict_blocks(order_.all()); }
  // Frees all contents; nothing may be referenced. For when the pages themselves are lost.
  void clear();
  // The idle blocks of nodes, in their order.
  std::vector<int32_t> idle(const std::vector<NodeId>& nodes) const;

  void observe(CacheObserver& observer) { observers_.push_back(&observer); }
  std::vector<NodeId> stored_nodes() const;  // of `observed_group_`
  // Reports an idle content to observers, if prefix hits need it.
  void report_idle(int32_t block);

  // Throws Error(kInternal) when blocks and tree do not agree.
  void check_invariants() const;

 private:
  size_t slot_of(NodeId node, int group) const {
    return static_cast<size_t>(node) * pool_.plan().groups.size() + static_cast<size_t>(group);
  }
  // Whether a node's content of a group is reported as stored, moved and removed.
  bool is_observed(NodeId node, int group) const { return group == observed_group_ && !tree_.is_part(node); }
  void hand_over(int32_t from, int32_t to);
  void detach(int32_t block);
  void evict_blocks(const std::vector<int32_t>& blocks);
  void lose_for_room(int32_t block);

  BlockPool& pool_;
  EvictionOrder& order_;
  const int observed_group_;
  PrefixTree tree_;
  std::vector<NodeId> nodes_;      // by block
  std::vector<int32_t> attached_;  // [node, group]
  std::vector<CacheObserver*> observers_;
  EvictionCounts counts_;
};

}  // namespace turbomind
