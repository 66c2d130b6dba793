#include "engine/cache/snapshots.h"

namespace turbomind {

Snapshots::Snapshots(BlockPool& pool, EvictionOrder& order, CacheContents& contents)
    : limits{pool.page_count() / 4},
      pool_(pool),
      order_(order),
      contents_(contents),
      is_rolling_(static_cast<size_t>(pool.page_count() + pool.host_count())) {}

bool Snapshots::make(NodeId node, int32_t block, bool is_rolling) {
  const int group = pool_.group_of(block);
  if (contents_.stored(node, group) != kNoBlock) {
    if (!is_rolling) commit(node, group);
    return true;
  }
  const int32_t copy = add(node, group, is_rolling);
  if (copy == kNoBlock) return false;
  pool_.copy(block, copy);
  if (!is_rolling) contents_.report_idle(copy);
  return true;
}

int32_t Snapshots::add(NodeId node, int group, bool is_rolling) {
  while (order_.snapshot_pages() + pool_.group(group).pages > limits.pages) {
    const int32_t last = order_.next_snapshot();
    if (last == kNoBlock) return kNoBlock;
    contents_.evict(last);
  }
  const int32_t block = contents_.allocate(group);
  if (block == kNoBlock) return kNoBlock;
  contents_.attach(node, block);
  is_rolling_[static_cast<size_t>(block)] = is_rolling;
  order_.put(block, EvictionOrder::Queue::kLatestSnapshot);
  return block;
}

void Snapshots::use_copy(int32_t stored, int32_t block) {
  pool_.copy(stored, block);
  if (order_.has(stored)) order_.record_use(stored);
}

void Snapshots::pass(NodeId node) {
  for (int group = 0; group < std::ssize(pool_.plan().groups); ++group) {
    if (const int32_t snapshot = contents_.stored(node, group); snapshot != kNoBlock) order_.pass(snapshot);
  }
}

void Snapshots::commit(NodeId node, int group) {
  const int32_t snapshot = contents_.stored(node, group);
  if (snapshot == kNoBlock) return;
  is_rolling_[static_cast<size_t>(snapshot)] = false;
  contents_.report_idle(snapshot);
}

void Snapshots::clear_rolling(NodeId node, int group) {
  const int32_t snapshot = contents_.stored(node, group);
  if (snapshot == kNoBlock || !order_.has_snapshot(snapshot)) return;
  if (is_rolling_[static_cast<size_t>(snapshot)] && order_.uses(snapshot) == 0) contents_.lose(snapshot);
}

}  // namespace turbomind
