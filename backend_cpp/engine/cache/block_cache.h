// KV cache of the engine's sequences.
//
// A block is in one of these states:
//   free        its pages hold nothing
//   referenced  one or more sequences use it
//   idle        no sequence uses it; its content is published and can be matched until the pages are needed
//
//            allocate                  release, published
//   free ----------------> referenced --------------------> idle
//     ^                      |    ^                         |  |
//     '----------------------'    '-------------------------'  | allocate, when no page is free:
//        release, not published           take                 | the content is evicted
//                                 ^                            |
//                                 '----------------------------'
//
// Blocks are addressed by content. Prefix caching, sessions, recomputation after preemption and parallel sampling all
// use this one mechanism:
//
//   BlockCache -- Snapshots --> CacheContents --> EvictionOrder --> BlockPool
//                               tree, blocks      idle blocks      pages, references
//
// Eviction is LRU; when a sequence ends, its last block becomes the oldest. Content that is unlikely to be reused is
// evicted before all other (Keep::kUntilNeeded).
//
// Used by the step thread only.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/cache/block_pool.h"
#include "engine/cache/cache_contents.h"
#include "engine/cache/eviction_order.h"
#include "engine/cache/prefix_key.h"
#include "engine/cache/snapshots.h"
#include "model/cache_plan.h"

namespace turbomind {

// Fate of a block's content when its last reference is dropped.
enum class Keep : uint8_t {
  kNothing,
  kUntilNeeded,  // evicted first
  kContent,
};

class BlockCache final : public CacheSource {
 public:
  // `hash_mask`: lets tests force hash collisions.
  BlockCache(CachePlan plan, const CacheSize& size, uint64_t hash_mask = ~uint64_t{0})
      : pool_(std::move(plan), size), order_(pool_), contents_(pool_, order_, hash_mask) {}
  BlockCache(const BlockCache&) = delete;

  const CachePlan& plan() const override { return pool_.plan(); }
  int block_len() const { return plan().block_len; }
  const CacheGroup& group(int index) const { return pool_.group(index); }
  int group_count() const { return static_cast<int>(plan().groups.size()); }
  BlockPool& pool() { return pool_; }
  const BlockPool& pool() const { return pool_; }
  const EvictionOrder& order() const { return order_; }
  CacheContents& contents() { return contents_; }
  const CacheContents& contents() const { return contents_; }
  PrefixTree& tree() override { return contents_.tree(); }
  int32_t stored(NodeId node, int group) const override { return contents_.stored(node, group); }
  const std::vector<int32_t>& pages(int32_t block) const override { return pool_.pages(block); }
  std::vector<PageMove> take_moves() override { return pool_.take_moves(); }
  void observe(CacheObserver& observer) override { contents_.observe(observer); }
  std::vector<NodeId> stored_nodes() const override { return contents_.stored_nodes(); }
  Snapshots& snapshots() { return snapshots_; }
  const Snapshots& snapshots() const { return snapshots_; }

  // Returns a block for new content with one reference; kNoBlock: too many pages are referenced.
  int32_t allocate(int group = 0);
  // References a stored block, swapped in first if on the host. Returns its new number; kNoBlock: no page is free.
  int32_t take(int32_t block);
  // Publishes a block as its group's content for block `index` of a prefix, whose node is `node`. Returns the block to
  // use from now on: an equal one that was published before, otherwise `block`.
  int32_t attach(const PrefixKey& prefix, int index, NodeId node, int32_t block);
  // Unreferences each block (but kNoBlock) and clears the list. Throws Error(kInternal) for an unreferenced block.
  void release(std::vector<int32_t>& blocks, Keep keep = Keep::kContent);
  // Drops one reference of a block and sets it to kNoBlock.
  void release(int32_t& block, Keep keep) { drop(std::exchange(block, kNoBlock), keep); }
  // Raises a content from Keep::kUntilNeeded to Keep::kContent.
  void keep_content(NodeId node, int group);

  void touch(NodeId node, bool is_pinned = false) override;
  int32_t restore(const PrefixKey& prefix, int index, int count, NodeId parent, int group) override;

  // Throws Error(kInternal) when its parts are not sound, or do not agree.
  void check_invariants() const;

 private:
  void reference(int32_t block);
  void drop(int32_t block, Keep keep);

  BlockPool pool_;
  EvictionOrder order_;
  CacheContents contents_;
  Snapshots snapshots_{pool_, order_, contents_};
};

// Appends the longest chain of a group's published blocks for the first tokens of `prefix` (at most `limit`), adds a
// reference to each, and returns the number of tokens covered.
int match_chain(BlockCache& cache, const PrefixKey& prefix, int limit, std::vector<int32_t>& blocks, int group = 0);
// Publishes blocks[index] of such a chain; those before it must be published. If equal content is published already,
// blocks[index] is replaced with that block.
void publish(BlockCache& cache, const PrefixKey& prefix, int index, std::vector<int32_t>& blocks);

}  // namespace turbomind
