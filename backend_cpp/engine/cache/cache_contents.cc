#include "engine/cache/cache_contents.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "engine/cache/prefix_hits.h"

namespace turbomind {

namespace {

using Queue = EvictionOrder::Queue;

// Whether a node's block of such a group is of use only with those of all nodes before it.
bool is_chain(const CacheGroup& group) {
  return group.kind == MemoryKind::kPaged || group.kind == MemoryKind::kCross;
}

}  // namespace

CacheContents::CacheContents(BlockPool& pool, EvictionOrder& order, uint64_t hash_mask)
    : pool_(pool),
      order_(order),
      observed_group_(observed_group(pool.plan())),
      tree_(pool.plan().block_len, hash_mask),
      nodes_(static_cast<size_t>(pool.page_count() + pool.host_count()), kNoNode) {}

int32_t CacheContents::stored(NodeId node, int group) const {
  const size_t slot = slot_of(node, group);
  return slot < attached_.size() ? attached_[slot] : kNoBlock;
}

bool CacheContents::is_in_host(NodeId node) const {
  for (int group = 0; group < std::ssize(pool_.plan().groups); ++group) {
    if (const int32_t block = stored(node, group); block != kNoBlock && pool_.is_of_host(block)) return true;
  }
  return false;
}

// ---- blocks come ----

int32_t CacheContents::allocate(int group) {
  const int pages = pool_.group(group).pages;
  if (pool_.available_count() < pages) return kNoBlock;
  while (pool_.free_count() < pages) {
    const int32_t block = order_.next();
    if (block == kNoBlock) throw internal_error("pages are idle, but no block is");
    if (order_.queue(block) == Queue::kUntilNeeded) {
      lose(block);
      ++counts_.evictions;
    } else {
      evict(block);
    }
  }
  return pool_.make(group);
}

void CacheContents::attach(NodeId node, int32_t block, const PrefixKey* prefix, int index) {
  const int group = pool_.group_of(block);
  const size_t groups = pool_.plan().groups.size();
  if (attached_.size() < tree_.id_bound() * groups) attached_.resize(tree_.id_bound() * groups, kNoBlock);
  attached_[slot_of(node, group)] = block;
  nodes_[static_cast<size_t>(block)] = node;
  tree_.ref(node);
  if (prefix == nullptr || !is_observed(node, group)) return;
  for (CacheObserver* observer : observers_) {
    observer->stored(tree_.number(node), tree_.number(tree_.parent(node)), *prefix, index);
  }
}

// Moves node and content from a block to the empty block `to`.
void CacheContents::hand_over(int32_t from, int32_t to) {
  const NodeId node = std::exchange(nodes_[static_cast<size_t>(from)], kNoNode);
  const int group = pool_.group_of(from);
  nodes_[static_cast<size_t>(to)] = node;
  attached_[slot_of(node, group)] = to;
  if (!is_observed(node, group)) return;
  const CacheTier tier = pool_.is_of_host(to) ? CacheTier::kHost : CacheTier::kDevice;
  for (CacheObserver* observer : observers_) observer->moved(tree_.number(node), tree_.tokens(node), tier);
}

void CacheContents::replace(int32_t from, int32_t to) {
  hand_over(from, to);
  order_.remove(from);
  pool_.free(from);
}

int32_t CacheContents::swap_in(int32_t block) {
  // Not in the order meanwhile: making room for it must not cost its own content.
  order_.remove(block);
  const int32_t to = allocate(pool_.group_of(block));
  if (to == kNoBlock) {
    order_.put(block, Queue::kHost);
    return kNoBlock;
  }
  hand_over(block, to);
  pool_.copy(block, to);
  pool_.free(block);
  ++counts_.swapped_in;
  return to;
}

// ---- blocks go ----

void CacheContents::evict(int32_t block) {
  order_.remove(block);
  const int group = pool_.group_of(block);
  int32_t to = pool_.make(group, true);
  while (to == kNoBlock && order_.next_of_host() != kNoBlock) {
    lose_for_room(order_.next_of_host());
    to = pool_.make(group, true);
  }
  if (to == kNoBlock) return lose_for_room(block);
  hand_over(block, to);
  pool_.copy(block, to);
  order_.put(to, Queue::kHost);
  pool_.free(block);
  ++counts_.swapped_out;
}

void CacheContents::evict_all() {
  for (int32_t block; (block = order_.next()) != kNoBlock;) evict(block);
}

void CacheContents::lose_for_room(int32_t block) {
  for (CacheObserver* observer : observers_) observer->leaving(node_of(block), pool_.group_of(block));
  lose(block);
  ++counts_.evictions;
}

void CacheContents::detach(int32_t block) {
  const NodeId node = std::exchange(nodes_[static_cast<size_t>(block)], kNoNode);
  const int group = pool_.group_of(block);
  attached_[slot_of(node, group)] = kNoBlock;
  if (is_observed(node, group)) {
    for (CacheObserver* observer : observers_) observer->removed(tree_.number(node));
  }
  tree_.unref(node);
}

void CacheContents::lose(int32_t block) {
  std::vector<int32_t> lost;
  if (is_chain(pool_.group(pool_.group_of(block))) || tree_.is_part(node_of(block))) {
    lost = idle(tree_.subtrees({node_of(block)}));
    std::erase(lost, block);
  }
  lost.insert(lost.begin(), block);
  for (const int32_t lost_block : lost) {
    if (order_.has(lost_block)) order_.remove(lost_block);
    detach(lost_block);
    pool_.free(lost_block);
  }
}

std::vector<int32_t> CacheContents::idle(const std::vector<NodeId>& nodes) const {
  std::vector<int32_t> blocks;
  for (const NodeId node : nodes) {
    for (int group = 0; group < std::ssize(pool_.plan().groups); ++group) {
      const int32_t block = stored(node, group);
      if (block != kNoBlock && order_.has(block)) blocks.push_back(block);
    }
  }
  return blocks;
}

void CacheContents::evict_blocks(const std::vector<int32_t>& blocks) {
  for (const int32_t block : blocks) {
    if (order_.has(block)) lose(block);  // it may have gone with one before it
  }
}

void CacheContents::clear() {
  for (const int32_t block : order_.all()) {
    order_.remove(block);
    detach(block);
    pool_.free(block);
  }
  for (CacheObserver* observer : observers_) observer->cleared();
}

// ---- observers ----

std::vector<NodeId> CacheContents::stored_nodes() const {
  std::vector<NodeId> stored_nodes;
  for (auto block = int32_t{0}; const NodeId node : nodes_) {
    const int32_t id = block++;
    if (node == kNoNode || !is_observed(node, pool_.group_of(id)) || tree_.scope(node).is_cross) continue;
    stored_nodes.push_back(node);
  }
  // A parent came first.
  std::ranges::sort(stored_nodes, {}, [this](NodeId node) { return tree_.number(node); });
  return stored_nodes;
}

void CacheContents::report_idle(int32_t block) {
  const int group = pool_.group_of(block);
  if (!bounds_hits(pool_.group(group))) return;
  for (CacheObserver* observer : observers_) observer->idle(node_of(block), group);
}

void CacheContents::check_invariants() const {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw internal_error(std::string("cache contents: ") + what);
  };
  tree_.check_invariants();
  for (auto block = int32_t{0}; const NodeId node : nodes_) {
    const int32_t id = block++;
    if (node != kNoNode) require(stored(node, pool_.group_of(id)) == id, "a node has another block");
    require(node != kNoNode || !order_.has(id), "an idle block holds nothing known");
    const bool is_in_use = order_.has(id) || pool_.is_referenced(id);
    require(is_in_use == (pool_.group_of(id) >= 0), "a block is in use by nobody, or is free and in use");
  }
  for (size_t slot = 0; slot < attached_.size(); ++slot) {
    const int32_t block = attached_[slot];
    if (block == kNoBlock) continue;
    const auto node = static_cast<NodeId>(slot / pool_.plan().groups.size());
    require(node_of(block) == node, "a block is attached to another node");
  }
}

}  // namespace turbomind
