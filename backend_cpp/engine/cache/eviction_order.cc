#include "engine/cache/eviction_order.h"

#include <string>

#include "base/error.h"

namespace turbomind {

EvictionOrder::EvictionOrder(const BlockPool& pool)
    : pool_(pool), entries_(static_cast<size_t>(pool.page_count() + pool.host_count())) {}

void EvictionOrder::put(int32_t block, Queue queue) {
  at(block).uses = 0;
  move(block, queue);
}

void EvictionOrder::move(int32_t block, Queue queue) {
  Entry& entry = at(block);
  if (entry.queue != Queue::kNone) {
    count(block, -1);
    list(entry.queue).erase(entry.position);
  }
  entry.queue = queue;
  if (queue == Queue::kNone) return;
  entry.stamp = next_stamp_++;
  entry.position = list(queue).insert(list(queue).end(), block);
  count(block, 1);
}

void EvictionOrder::count(int32_t block, int sign) {
  const Queue queue = at(block).queue;
  if (queue == Queue::kHost) return;
  const int pages = sign * pool_.pages_of(block);
  idle_pages_ += pages;
  if (is_snapshot(queue)) snapshot_pages_ += pages;
}

void EvictionOrder::touch(int32_t block, bool is_pinned) {
  Queue to = queue(block);
  if (is_pinned && is_snapshot(to)) to = Queue::kSharedSnapshot;
  if (is_pinned && to == Queue::kUntilNeeded) to = Queue::kNeededLast;
  move(block, to);
}

void EvictionOrder::record_use(int32_t block) {
  Entry& entry = at(block);
  ++entry.uses;
  if (!is_snapshot(entry.queue)) return move(block, entry.queue);
  move(block, entry.uses > 1 ? Queue::kSharedSnapshot : Queue::kLatestSnapshot);
}

void EvictionOrder::pass(int32_t block) {
  if (queue(block) == Queue::kLatestSnapshot) move(block, Queue::kPassedSnapshot);
}

bool EvictionOrder::keep(int32_t block) {
  if (queue(block) != Queue::kUntilNeeded) return false;
  move(block, Queue::kNeededLast);
  return true;
}

int32_t EvictionOrder::front(Queue queue) const {
  const std::list<int32_t>& blocks = lists_[static_cast<size_t>(queue)];
  return blocks.empty() ? kNoBlock : blocks.front();
}

int32_t EvictionOrder::next() const {
  int32_t oldest = front(Queue::kUntilNeeded);
  if (oldest != kNoBlock) return oldest;
  for (const Queue queue :
       {Queue::kNeededLast, Queue::kPassedSnapshot, Queue::kLatestSnapshot, Queue::kSharedSnapshot}) {
    const int32_t block = front(queue);
    if (block != kNoBlock && (oldest == kNoBlock || at(block).stamp < at(oldest).stamp)) oldest = block;
  }
  return oldest;
}

int32_t EvictionOrder::next_snapshot() const {
  for (const Queue queue : {Queue::kPassedSnapshot, Queue::kLatestSnapshot, Queue::kSharedSnapshot}) {
    if (const int32_t block = front(queue); block != kNoBlock) return block;
  }
  return kNoBlock;
}

std::vector<int32_t> EvictionOrder::all() const {
  std::vector<int32_t> all;
  for (const std::list<int32_t>& blocks : lists_) all.insert(all.end(), blocks.begin(), blocks.end());
  return all;
}

void EvictionOrder::check_invariants() const {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw internal_error(std::string("eviction order: ") + what);
  };
  int idle = 0;
  int snapshots = 0;
  size_t listed = 0;
  for (auto number = int32_t{0}; const Entry& entry : entries_) {
    const int32_t id = number++;
    if (entry.queue == Queue::kNone) continue;
    ++listed;
    require(pool_.group_of(id) >= 0 && !pool_.is_referenced(id), "a block is free or in use");
    require(pool_.is_of_host(id) == (entry.queue == Queue::kHost), "a block is in the other memory");
    if (entry.queue != Queue::kHost) idle += pool_.pages_of(id);
    if (is_snapshot(entry.queue)) snapshots += pool_.pages_of(id);
  }
  require(idle == idle_pages_ && snapshots == snapshot_pages_, "counts and idle blocks differ");
  require(listed == all().size(), "lists and idle blocks differ");
}

}  // namespace turbomind
