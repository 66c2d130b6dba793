// Eviction order of idle blocks, which no sequence references.
//
//   kUntilNeeded                       first: unlikely to be reused
//   kNeededLast and all snapshots      then, whichever was used longest ago
//   kHost                              by those that leave the device
//
// Snapshots have a share of the pages. Where it is full, those whose sequence has made a later one go first, then the
// latest of each sequence, then those that several sequences used.
//
// Within a place, the least recently used goes first. Used by the step thread only.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <vector>

#include "engine/cache/block_pool.h"

namespace turbomind {

class EvictionOrder {
 public:
  enum class Queue : uint8_t {
    kNone,  // referenced, or no content
    kNeededLast,
    kUntilNeeded,
    kPassedSnapshot,  // its sequence has made a later one; no other sequence has used it
    kLatestSnapshot,
    kSharedSnapshot,  // used at least twice
    kHost,
  };

  // `pool` must outlive it.
  explicit EvictionOrder(const BlockPool& pool);

  // Adds a block as the most recently used of its place.
  void put(int32_t block, Queue queue);
  void remove(int32_t block) { move(block, Queue::kNone); }
  Queue queue(int32_t block) const { return at(block).queue; }
  bool has(int32_t block) const { return at(block).queue != Queue::kNone; }
  bool has_snapshot(int32_t block) const { return is_snapshot(at(block).queue); }

  // Marks a block as most recently used; `is_pinned`: also as evicted last.
  void touch(int32_t block, bool is_pinned);
  // Notes that a sequence used a copy of a block's content.
  void record_use(int32_t block);
  int uses(int32_t block) const { return at(block).uses; }
  // Notes that the sequence that made or used a snapshot has made a later one.
  void pass(int32_t block);
  // Moves a block from kUntilNeeded to kNeededLast. False: it was elsewhere.
  bool keep(int32_t block);

  // The block of the device, the snapshot, the block of the host to evict next; kNoBlock: there is none.
  int32_t next() const;
  int32_t next_snapshot() const;
  int32_t next_of_host() const { return front(Queue::kHost); }
  std::vector<int32_t> all() const;

  int idle_pages() const { return idle_pages_; }          // of the device
  int snapshot_pages() const { return snapshot_pages_; }  // of these
  // Changes whenever a content becomes idle or is marked as used.
  uint64_t last_use() const { return next_stamp_; }
  // Throws Error(kInternal) when lists and counts do not agree, or a block in them is referenced.
  void check_invariants() const;

 private:
  struct Entry {
    Queue queue = Queue::kNone;
    int uses = 0;                           // since it was put
    uint64_t stamp = 0;                     // of its last use
    std::list<int32_t>::iterator position;  // in its list
  };

  static bool is_snapshot(Queue queue) { return queue >= Queue::kPassedSnapshot && queue <= Queue::kSharedSnapshot; }
  Entry& at(int32_t block) { return entries_[static_cast<size_t>(block)]; }
  const Entry& at(int32_t block) const { return entries_[static_cast<size_t>(block)]; }
  std::list<int32_t>& list(Queue queue) { return lists_[static_cast<size_t>(queue)]; }
  int32_t front(Queue queue) const;
  void move(int32_t block, Queue queue);
  void count(int32_t block, int sign);

  const BlockPool& pool_;
  std::vector<Entry> entries_;               // by block
  std::array<std::list<int32_t>, 7> lists_;  // by place, least recently used first
  int idle_pages_ = 0;
  int snapshot_pages_ = 0;
  uint64_t next_stamp_ = 1;
};

}  // namespace turbomind
