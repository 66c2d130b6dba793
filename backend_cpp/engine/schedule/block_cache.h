// The KV cache's blocks: reference counts, and the contents that unreferenced blocks still hold.
//
// A block belongs to a cache group and has as many pages as that group's blocks need (model/cache_plan.h); the number
// of its first page identifies it. All groups allocate pages from one arena. A block is in one of these states:
//   free        its pages hold nothing
//   referenced  one or more sequences use it
//   idle        no sequence uses it; its content is published and can be matched until the pages are needed
//
//            allocate                  release, published
//   free ----------------> referenced --------------------> idle
//     ^                      |    ^                         |  |
//     '----------------------'    '-------------------------'  | allocate, when no page is free:
//        release, not published           match                | the content is evicted
//                                 ^                            |
//                                 '----------------------------'
//
// Blocks are addressed by content: a published block is attached to a node of the prefix tree
// (engine/schedule/prefix_tree.h), which has at most one block of each group. Prefix caching, sessions, recomputation
// after preemption and parallel sampling all use this one mechanism.
//
//   prefix tree                          attached:  all tokens   window   state
//   root -- t0..t3 -- t4..t7 -- a8..a11             0 1 4        - 9 6    - - 12
//                           \-- b8..b11             0 1 5        - 9 7    - - -
//
// Eviction is LRU; when a sequence ends, its last block becomes the oldest. Content that is unlikely to be reused is
// evicted before all other (Keep::kUntilNeeded). Where a group needs all blocks before a token, evicting a block also
// evicts the content after it, which could no longer be matched.
//
// With host pages (numbers from page_count() on), an idle block's content is swapped out to the host before its pages
// are reused, and swapped in when it is matched, which is cheaper than recomputation. No sequence references host
// blocks; their eviction is LRU too. Page moves are collected; the caller executes them in order before the next step.
//
// A group of recurrent states has no chain of blocks: a node has a snapshot, a copy of a sequence's state after exactly
// the tokens up to the node's end. A snapshot between two block boundaries also has copies of the other groups' partial
// block, all attached to a node for a part of a block. Snapshots have at most a share of the arena; those that were
// never reused are evicted first. Without such a group, an ended sequence's partial block is attached to such a node.
//
// Used by the step thread only.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <span>
#include <utility>
#include <vector>

#include "engine/schedule/cache_observer.h"
#include "engine/schedule/prefix_key.h"
#include "engine/schedule/prefix_tree.h"
#include "model/cache_plan.h"

namespace turbomind {

inline constexpr int32_t kNoBlock = -1;

// What happens to a block's content when its last reference is dropped.
enum class Keep : uint8_t {
  kNothing,
  kUntilNeeded,  // evicted first
  kContent,
};

class BlockCache {
 public:
  // `hash_mask`: lets tests force hash collisions.
  BlockCache(CachePlan plan, const CacheSize& size, uint64_t hash_mask = ~uint64_t{0});

  const CachePlan& plan() const { return plan_; }
  int block_len() const { return plan_.block_len; }
  const CacheGroup& group(int index) const { return plan_.groups[static_cast<size_t>(index)]; }
  int group_count() const { return static_cast<int>(plan_.groups.size()); }

  // ---- page counts ----

  int page_count() const { return page_count_; }
  int free_count() const { return static_cast<int>(free_.size()); }
  int idle_count() const { return idle_pages_; }
  int referenced_count() const { return page_count_ - free_count() - idle_pages_; }
  // Pages that allocate() can use.
  int available_count() const { return free_count() + idle_pages_; }
  int host_count() const { return static_cast<int>(blocks_.size()) - page_count_; }
  int host_used_count() const { return host_count() - static_cast<int>(host_free_.size()); }
  int snapshot_count() const { return snapshot_pages_; }  // on the device
  // Contents evicted, swapped out to the host, and swapped in.
  int64_t eviction_count() const { return evictions_; }
  int64_t swapped_out_count() const { return swapped_out_; }
  int64_t swapped_in_count() const { return swapped_in_; }

  // ---- blocks ----

  // Returns a block for new content with one reference; kNoBlock: too many pages are referenced.
  int32_t allocate(int group = 0);
  int pages_of(int32_t block) const { return group(at(block).group).pages; }
  // The page at `index` of a block.
  int32_t page(int32_t block, int index) const;
  // Returns the page moves since the last call. The caller executes them in order before it writes anything planned
  // after them.
  std::vector<PageMove> take_moves() { return std::exchange(moves_, {}); }

  // Copies a block's content to another block of its group.
  void copy(int32_t from, int32_t to) { move_pages(from, to); }

  // Drops one reference of each block (kNoBlock is skipped) and clears the list. Throws Error(kInternal) for a block
  // that is not referenced.
  void release(std::vector<int32_t>& blocks, Keep keep = Keep::kContent);
  // Drops one reference of a block and sets it to kNoBlock.
  void give_back(int32_t& block, Keep keep);

  // ---- content ----

  PrefixTree& tree() { return tree_; }
  const PrefixTree& tree() const { return tree_; }
  // The block of a group attached to a node, on the device or the host; kNoBlock: none.
  int32_t stored(NodeId node, int group) const;
  // Whether blocks attached to a node are in the host's memory.
  bool is_in_host(NodeId node) const;
  // Adds a reference to a stored block; a host block is swapped in first. Returns the block's new number; kNoBlock: too
  // many pages are referenced.
  int32_t take(int32_t block);
  // Publishes a block as its group's content for block `index` of a prefix, whose node is `node`. Returns the block to
  // use from now on: an equal one that was published before, otherwise `block`.
  int32_t attach(const PrefixKey& prefix, int index, NodeId node, int group, int32_t block);

  // Appends the longest chain of a group's published blocks for the first tokens of `prefix` (at most `limit`), adds a
  // reference to each, and returns the number of tokens covered.
  int match(const PrefixKey& prefix, int limit, std::vector<int32_t>& blocks, int group = 0);
  // Publishes blocks[index]; those before it must be published. If equal content is published already, blocks[index] is
  // replaced with that block.
  void publish(const PrefixKey& prefix, int index, std::vector<int32_t>& blocks, int group = 0);

  // Attaches a copy of a sequence's state block to the node at whose end the sequence is. False: no room.
  // `is_rolling`: the sequence's next snapshot replaces it, unless another sequence made it permanent.
  bool make_snapshot(NodeId node, int group, int32_t block, bool is_rolling = false);
  // Copies stored content to a sequence's own block of the same group, and marks it as used.
  void use_copy(int32_t stored, int32_t block);
  // Notes that the sequence that made or used a node's snapshots has made later ones.
  void pass_snapshots(NodeId node);
  // Limits for snapshots: pages (default: a fourth of the arena), and the interval in prompt tokens at which they are
  // made (0: at anchors only, engine/schedule/sequence_memory.h).
  void limit_snapshots(int pages) { most_snapshot_pages_ = pages; }
  void set_snapshot_interval(int tokens) { snapshot_interval_ = tokens; }
  int snapshot_interval() const { return snapshot_interval_; }
  // Of a block that shares its first tokens with a prefix, at least this many are worth a copy.
  void set_least_copied(int tokens) { least_copied_ = tokens; }
  int least_copied() const { return least_copied_; }
  // Frees a rolling snapshot that was never reused.
  void forget_rolling_snapshot(NodeId node, int group);

  // ---- for the disk tier (engine/schedule/disk_tier.h) ----

  struct Content {
    NodeId node = kNoNode;
    int group = 0;
    int32_t block = kNoBlock;
  };
  // From now on, unreferenced contents that bound prefix hits are queued for the disk tier. `leaving` is called before
  // a queued content is evicted.
  void note_contents(std::function<void(const Content&)> leaving) { leaving_ = std::move(leaving); }
  // Removes and returns a queued content that still exists, parents first; `block` is kNoBlock: the queue is empty.
  Content take_content();
  bool has_contents() const { return !noted_.empty(); }
  // Marks a node's contents as most recently used; `is_pinned`: also as evicted last.
  void touch(NodeId node, bool is_pinned = false);
  // Changes whenever a content becomes idle or is marked as used.
  uint64_t last_use() const { return next_stamp_; }
  // Raises a content from Keep::kUntilNeeded to Keep::kContent.
  void keep_content(NodeId node, int group);
  // Makes a rolling snapshot permanent.
  void settle_snapshot(NodeId node, int group);
  // Returns an idle block attached as block `index` of a prefix, after `parent`, or as its first `count` tokens. The
  // caller writes its content before any other call. kNoBlock: it exists already, or there is no room.
  int32_t restore(const PrefixKey& prefix, int index, int count, NodeId parent, int group);

  // Frees the unreferenced contents of a node.
  void forget(NodeId node);
  // The same for all nodes of a realm, and for all nodes.
  void forget_realm(uint64_t realm);
  void forget_unused();
  // Frees all contents; nothing may be referenced. For when the pages themselves are lost.
  void forget_all();

  // The group whose blocks are reported to the observer; -1: none.
  int observed_group() const { return observed_group_; }
  // Reports changes of what can be matched to `observer`, which must outlive the cache.
  void observe(CacheObserver& observer) { observer_ = &observer; }
  struct Held {
    uint64_t content = 0;
    uint64_t parent = 0;
    bool is_first = false;  // it has no parent
    bool is_in_host = false;
    std::span<const int32_t> tokens;
  };
  // The contents reported to the observer, parents first.
  std::vector<Held> contents() const;

  // Throws Error(kInternal) when counts, lists and tree do not agree.
  void check_invariants() const;

 private:
  enum class Place : uint8_t {
    kNone,  // free, or not the first page of a block
    kReferenced,
    kNeededLast,  // idle; from here on LRU lists, in eviction order among equally old blocks
    kUntilNeeded,
    kPassedSnapshot,  // its sequence has made a later one; no other sequence has used it
    kLatestSnapshot,
    kSharedSnapshot,  // used at least twice
    kHost,
  };
  struct Block {
    Place place = Place::kNone;
    int references = 0;
    int group = 0;
    bool is_rolling = false;                // as make_snapshot() has it
    int uses = 0;                           // by sequences, for snapshots
    NodeId node = kNoNode;                  // where it is attached; kNoNode: not published
    bool is_noted = false;                  // queued for take_content()
    uint64_t stamp = 0;                     // when it became idle
    std::list<int32_t>::iterator position;  // in its list
    std::vector<int32_t> more_pages;        // after the first
  };

  Block& at(int32_t block) { return blocks_[static_cast<size_t>(block)]; }
  const Block& at(int32_t block) const { return blocks_[static_cast<size_t>(block)]; }
  bool is_of_host(int32_t page) const { return page >= page_count_; }
  std::list<int32_t>& list(Place place) { return lists_[static_cast<size_t>(place)]; }
  int32_t& attached(NodeId node, int group);
  // Whether a node's content of a group is reported to the observer.
  bool is_observed(NodeId node, int group) const { return group == observed_group_ && !tree_.is_part(node); }

  // Allocates a block's pages from a free list (device or host), which must have enough.
  int32_t take_pages(std::vector<int32_t>& from, int group);
  void free_pages(int32_t block);
  // Adds to and removes from an LRU list.
  void put(int32_t block, Place place);
  void remove(int32_t block);
  void count(int32_t block, int sign);
  bool is_listed(int32_t block) const {
    return at(block).place != Place::kNone && at(block).place != Place::kReferenced;
  }
  void reference(int32_t block);
  void drop(int32_t block, Keep keep);
  // Evicts an idle block: its content moves to the host or is lost.
  void evict_one();
  void move_out(int32_t block);
  void move_pages(int32_t from, int32_t to);
  // Moves node, list position and content from block `from` to the empty block `to`.
  void hand_over(int32_t from, int32_t to);
  void unpublish(int32_t block);
  // Evicts an idle block's content, with the contents that can no longer be matched.
  void lose(int32_t block);
  void forget(const std::vector<int32_t>& blocks);
  // Appends a node's unreferenced blocks.
  void add_unused(NodeId node, std::vector<int32_t>& blocks) const;
  bool make_room_for_snapshot(int group);
  void note_content(int32_t block);
  static bool is_snapshot(Place place) { return place >= Place::kPassedSnapshot && place <= Place::kSharedSnapshot; }

  CachePlan plan_;
  int page_count_;
  int observed_group_;  // -1: none
  PrefixTree tree_;
  std::vector<Block> blocks_;  // by first page; device pages, then host pages
  std::vector<int32_t> free_;
  std::vector<int32_t> host_free_;
  std::array<std::list<int32_t>, 8> lists_;  // by place, least recently used first
  std::vector<int32_t> attached_;            // [node, group]
  std::vector<PageMove> moves_;
  int idle_pages_ = 0;
  int snapshot_pages_ = 0;
  int most_snapshot_pages_;
  int snapshot_interval_ = 0;
  int least_copied_ = 8;
  uint64_t next_stamp_ = 1;
  struct Noted {
    NodeId node;
    uint64_t number;
    int group;
  };
  std::function<void(const Content&)> leaving_;  // empty: nothing is queued
  std::vector<Noted> noted_;
  CacheObserver* observer_ = nullptr;  // may be null
  int64_t evictions_ = 0;
  int64_t swapped_out_ = 0;
  int64_t swapped_in_ = 0;
};

}  // namespace turbomind
