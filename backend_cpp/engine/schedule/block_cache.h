// The cache's blocks: who uses them, and what the unused ones still hold.
//
// A block belongs to a cache group and consists of as many pages as the group's blocks take (model/cache_plan.h); its
// first page is its number. All groups take pages from one arena. A block is in one of these states:
//   free        its pages hold nothing
//   referenced  used by one or more sequences
//   idle        used by none, but its content is known and can be used again until the space is needed
//
//            allocate                  release, published
//   free ----------------> referenced --------------------> idle
//     ^                      |    ^                         |  |
//     '----------------------'    '-------------------------'  | allocate, when pages are missing:
//        release, not published           match                | the content is forgotten
//                                 ^                            |
//                                 '----------------------------'
//
// Content is found by what it is: a published block is attached to a node of the tree of prefixes
// (engine/schedule/prefix_tree.h), which has at most one block of each group. Prefix caching, conversations kept
// between requests, recomputation after preemption, and several responses to one prompt are all this one mechanism.
//
//   tree of prefixes                     attached:  all tokens   window   state
//   root -- t0..t3 -- t4..t7 -- a8..a11             0 1 4        - 9 6    - - 12
//                           \-- b8..b11             0 1 5        - 9 7    - - -
//
// Idle blocks are taken again least recently used first; when a sequence ends, its last block goes first. What is
// unlikely to be wanted again goes before all others (Keep::kUntilNeeded). Where a group needs all blocks before a
// token, content that has lost one of them can never be found, and goes with it.
//
// Where the host has pages too (numbers from page_count() on), what an idle block holds goes there before its pages
// are taken, and comes back when it is found: that is cheaper than to compute it again. The host's blocks are used by
// nobody; they go least recently used first. Moves are collected, and are to be done in their order before the next
// step.
//
// A group of states has no chain of blocks: what is attached to a node is a snapshot, a copy of a sequence's state
// after exactly the tokens up to that node's end. Between two borders of blocks, a snapshot has copies of what the
// other groups hold of the block's beginning, all attached to a node that is part of a block. Snapshots have at most a
// share of the arena; those that nobody has come back to go first.
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

// What becomes of a block's content when nobody references the block any more.
enum class Keep : uint8_t {
  kNothing,
  kUntilNeeded,  // it is the first to go
  kContent,
};

class BlockCache {
 public:
  // `hash_mask` is for tests, which make hashes collide with it.
  BlockCache(CachePlan plan, const CacheSize& size, uint64_t hash_mask = ~uint64_t{0});

  const CachePlan& plan() const { return plan_; }
  int block_len() const { return plan_.block_len; }
  const CacheGroup& group(int index) const { return plan_.groups[static_cast<size_t>(index)]; }
  int group_count() const { return static_cast<int>(plan_.groups.size()); }

  // ---- counts of pages ----

  int page_count() const { return page_count_; }
  int free_count() const { return static_cast<int>(free_.size()); }
  int idle_count() const { return idle_pages_; }
  int referenced_count() const { return page_count_ - free_count() - idle_pages_; }
  // That allocate() could give out.
  int available_count() const { return free_count() + idle_pages_; }
  int host_count() const { return static_cast<int>(blocks_.size()) - page_count_; }
  int host_used_count() const { return host_count() - static_cast<int>(host_free_.size()); }
  int snapshot_count() const { return snapshot_pages_; }  // on the device
  // Contents that were given up for space, that went to the host, and that came back.
  int64_t eviction_count() const { return evictions_; }
  int64_t swapped_out_count() const { return swapped_out_; }
  int64_t swapped_in_count() const { return swapped_in_; }

  // ---- blocks ----

  // A block for new content, with one reference; kNoBlock when too many pages are referenced.
  int32_t allocate(int group = 0);
  int pages_of(int32_t block) const { return group(at(block).group).pages; }
  // Page number `index` of a block.
  int32_t page(int32_t block, int index) const;
  // The moves since the last call, to be done one after the other before anything is written that was planned since.
  std::vector<PageMove> take_moves() { return std::exchange(moves_, {}); }

  // Has what a block holds copied to another of its group.
  void copy(int32_t from, int32_t to) { move_pages(from, to); }

  // Drops one reference of each block but kNoBlock and empties the list. Throws Error(kInternal) for a block that is
  // not referenced.
  void release(std::vector<int32_t>& blocks, Keep keep = Keep::kContent);
  // Drops one reference of a block and puts kNoBlock in its place.
  void give_back(int32_t& block, Keep keep);

  // ---- content ----

  PrefixTree& tree() { return tree_; }
  // The block of a group that is attached to a node, wherever it is; kNoBlock: none.
  int32_t stored(NodeId node, int group) const;
  // Takes one more reference of a stored block; one of the host gets pages first. Returns its number from now on,
  // kNoBlock when too many pages are referenced.
  int32_t take(int32_t block);
  // Publishes that a block holds what its group remembers of block number `index` of a prefix, whose node this is.
  // Returns the block to use from now on: where the same is published already, that one.
  int32_t attach(const PrefixKey& prefix, int index, NodeId node, int group, int32_t block);

  // Appends the longest run of published blocks of a group that holds the first tokens of `prefix` (at most `limit` of
  // them), with a reference each, and returns how many tokens it covers.
  int match(const PrefixKey& prefix, int limit, std::vector<int32_t>& blocks, int group = 0);
  // Publishes blocks[index], after those before it. Where the same content is published already, blocks[index] is
  // exchanged for that block.
  void publish(const PrefixKey& prefix, int index, std::vector<int32_t>& blocks, int group = 0);

  // Attaches a copy of a sequence's block to the node up to whose end it has come. False: there is no room.
  // `is_rolling`: the next one of the sequence is to replace it, unless somebody else makes it to stay.
  bool make_snapshot(NodeId node, int group, int32_t block, bool is_rolling = false);
  // Copies a snapshot into a sequence's block.
  void use_snapshot(int32_t snapshot, int32_t block);
  // The sequence that made or used the snapshots of a node has made later ones.
  void pass_snapshots(NodeId node);
  // Snapshots get at most this many pages, a fourth of the arena at first; of prompts they are made every `interval`
  // tokens, 0: at anchors alone (engine/schedule/sequence_memory.h).
  void limit_snapshots(int pages) { most_snapshot_pages_ = pages; }
  void set_snapshot_interval(int tokens) { snapshot_interval_ = tokens; }
  int snapshot_interval() const { return snapshot_interval_; }
  // Forgets a rolling snapshot that nobody has come back to.
  void forget_rolling_snapshot(NodeId node, int group);

  // ---- what outlives the process (engine/schedule/disk_tier.h) ----

  struct Content {
    NodeId node = kNoNode;
    int group = 0;
    int32_t block = kNoBlock;
  };
  // From now on, contents that bound hits and that nobody references any more are noted for somebody who keeps them
  // elsewhere; `leaving` is called with one that is noted before it is lost for want of space.
  void note_contents(std::function<void(const Content&)> leaving) { leaving_ = std::move(leaving); }
  // Takes a noted content that is still there; what follows a content comes after it. kNoBlock: none is left.
  Content take_content();
  bool has_contents() const { return !noted_.empty(); }
  // What is attached to a node counts as used last; `is_pinned`: and as what is kept longest.
  void touch(NodeId node, bool is_pinned = false);
  // Changes whenever anything becomes idle, or counts as used.
  uint64_t last_use() const { return next_stamp_; }
  // A content that would have been the first to go is kept as long as others.
  void keep_content(NodeId node, int group);
  // Has a snapshot kept that the next one of its sequence would have replaced.
  void settle_snapshot(NodeId node, int group);
  // A block with the content of block number `index` of a prefix, after `parent`, or of its first `count` tokens, that
  // the caller fills before anything else happens; used by nobody. kNoBlock: it is there, or there is no room.
  int32_t restore(const PrefixKey& prefix, int index, int count, NodeId parent, int group);

  // Forgets what is attached to a node and used by nobody.
  void forget(NodeId node);
  // The same of all nodes of a realm, and of all there are.
  void forget_realm(uint64_t realm);
  void forget_unused();
  // The same where nothing is in use, and nothing that was held is there any more.
  void forget_all();

  // The group whose blocks observers know of; -1: none.
  int observed_group() const { return observed_group_; }
  // Reports what can be found from now on; `observer` must outlive the cache.
  void observe(CacheObserver& observer) { observer_ = &observer; }
  struct Held {
    uint64_t content = 0;
    uint64_t parent = 0;
    bool is_first = false;  // the parent is no content
    bool is_in_host = false;
    std::span<const int32_t> tokens;
  };
  // What observers know of, each content after its parent.
  std::vector<Held> contents() const;

  // Throws Error(kInternal) when counts, lists and tree do not agree.
  void check_invariants() const;

 private:
  enum class Place : uint8_t {
    kNone,  // free, or no block's first page
    kReferenced,
    kNeededLast,  // idle; the lists, in the order in which equally old ones go
    kUntilNeeded,
    kPassedSnapshot,  // its sequence has made a later one, and nobody else has used it
    kLatestSnapshot,
    kSharedSnapshot,  // used twice
    kHost,
  };
  struct Block {
    Place place = Place::kNone;
    int references = 0;
    int group = 0;
    bool is_rolling = false;                // as make_snapshot() has it
    int uses = 0;                           // of a snapshot
    NodeId node = kNoNode;                  // that it is attached to; kNoNode: not published
    bool is_noted = false;                  // for take_content()
    uint64_t stamp = 0;                     // when it became idle
    std::list<int32_t>::iterator position;  // in its list
    std::vector<int32_t> more_pages;        // after the first
  };

  Block& at(int32_t block) { return blocks_[static_cast<size_t>(block)]; }
  const Block& at(int32_t block) const { return blocks_[static_cast<size_t>(block)]; }
  bool is_of_host(int32_t page) const { return page >= page_count_; }
  std::list<int32_t>& list(Place place) { return lists_[static_cast<size_t>(place)]; }
  int32_t& attached(NodeId node, int group);
  // Whether observers know of what such a node has of a group.
  bool is_observed(NodeId node, int group) const { return group == observed_group_ && !tree_.is_part(node); }

  // Takes the pages of a block, from the device's or the host's; there must be enough.
  int32_t take_pages(std::vector<int32_t>& from, int group);
  void free_pages(int32_t block);
  // Into and out of a list.
  void put(int32_t block, Place place);
  void remove(int32_t block);
  void count(int32_t block, int sign);
  bool is_listed(int32_t block) const {
    return at(block).place != Place::kNone && at(block).place != Place::kReferenced;
  }
  void reference(int32_t block);
  void drop(int32_t block, Keep keep);
  // Frees the pages of an idle block: its content goes to the host, or is lost.
  void evict_one();
  void move_out(int32_t block);
  void move_pages(int32_t from, int32_t to);
  // Makes `to`, which holds nothing, the block that holds what `from` did.
  void hand_over(int32_t from, int32_t to);
  void unpublish(int32_t block);
  // Forgets what a block holds that nobody uses, with what can no longer be found.
  void lose(int32_t block);
  void forget(const std::vector<int32_t>& blocks);
  // Appends what is attached to a node and used by nobody.
  void add_unused(NodeId node, std::vector<int32_t>& blocks) const;
  bool make_room_for_snapshot(int group);
  void note_content(int32_t block);
  static bool is_snapshot(Place place) { return place >= Place::kPassedSnapshot && place <= Place::kSharedSnapshot; }

  CachePlan plan_;
  int page_count_;
  int observed_group_;  // -1: none
  PrefixTree tree_;
  std::vector<Block> blocks_;  // by first page; the host's are the last ones
  std::vector<int32_t> free_;
  std::vector<int32_t> host_free_;
  std::array<std::list<int32_t>, 8> lists_;  // by place, each least recently used first
  std::vector<int32_t> attached_;            // [node, group]
  std::vector<PageMove> moves_;
  int idle_pages_ = 0;
  int snapshot_pages_ = 0;
  int most_snapshot_pages_;
  int snapshot_interval_ = 0;
  uint64_t next_stamp_ = 1;
  struct Noted {
    NodeId node;
    uint64_t number;
    int group;
  };
  std::function<void(const Content&)> leaving_;  // empty: nothing is noted
  std::vector<Noted> noted_;
  CacheObserver* observer_ = nullptr;  // may be null
  int64_t evictions_ = 0;
  int64_t swapped_out_ = 0;
  int64_t swapped_in_ = 0;
};

}  // namespace turbomind
