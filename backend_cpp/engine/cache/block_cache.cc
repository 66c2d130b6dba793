#include "engine/cache/block_cache.h"

#include <algorithm>

#include "base/error.h"

namespace turbomind {

using Queue = EvictionOrder::Queue;

int32_t BlockCache::allocate(int group) {
  const int32_t block = contents_.allocate(group);
  if (block != kNoBlock) pool_.reference(block);
  return block;
}

int32_t BlockCache::take(int32_t block) {
  if (pool_.is_of_host(block)) block = contents_.swap_in(block);
  if (block != kNoBlock) reference(block);
  return block;
}

int32_t BlockCache::attach(const PrefixKey& prefix, int index, NodeId node, int32_t block) {
  const int32_t twin = stored(node, pool_.group_of(block));
  if (twin == block) return block;
  if (twin == kNoBlock) {
    contents_.attach(node, block, &prefix, index);
    return block;
  }
  if (pool_.is_of_host(twin)) {  // computed again, since there was no place to bring it to
    contents_.replace(twin, block);
    return block;
  }
  reference(twin);
  drop(block, Keep::kContent);
  return twin;
}

void BlockCache::reference(int32_t block) {
  if (order_.has(block)) order_.remove(block);
  pool_.reference(block);
}

void BlockCache::release(std::vector<int32_t>& blocks, Keep keep) {
  std::erase(blocks, kNoBlock);
  // Last block first, so that a chain loses its end before its beginning.
  std::for_each(blocks.rbegin(), blocks.rend(), [&](int32_t block) { drop(block, keep); });
  blocks.clear();
}

void BlockCache::drop(int32_t block, Keep keep) {
  if (!pool_.drop(block)) return;
  const NodeId node = contents_.node_of(block);
  if (node == kNoNode) return pool_.free(block);
  if (keep == Keep::kNothing) return contents_.lose(block);
  order_.put(block, keep == Keep::kContent ? Queue::kNeededLast : Queue::kUntilNeeded);
  if (keep == Keep::kContent && !tree().is_part(node)) contents_.report_idle(block);
}

void BlockCache::keep_content(NodeId node, int group) {
  const int32_t block = stored(node, group);
  if (block != kNoBlock && order_.keep(block)) contents_.report_idle(block);
}

void BlockCache::touch(NodeId node, bool is_pinned) {
  for (const int32_t block : contents_.idle({node})) order_.touch(block, is_pinned);
}

int32_t BlockCache::restore(const PrefixKey& prefix, int index, int count, NodeId parent, int group_index) {
  const NodeId node = tree().get(parent, prefix, index, count);
  tree().ref(node);
  int32_t block = kNoBlock;
  if (stored(node, group_index) != kNoBlock) {
    // Somebody has computed it meanwhile.
  } else if (count < block_len() || group(group_index).kind == MemoryKind::kState) {
    block = snapshots_.add(node, group_index);
  } else if (block = contents_.allocate(group_index); block != kNoBlock) {
    contents_.attach(node, block, &prefix, index);
    order_.put(block, Queue::kNeededLast);
  }
  tree().unref(node);
  return block;
}

void BlockCache::check_invariants() const {
  pool_.check_invariants();
  order_.check_invariants();
  contents_.check_invariants();
  if (pool_.free_count() + order_.idle_pages() != pool_.available_count()) {
    throw internal_error("block cache: pages are neither free nor idle, and not referenced");
  }
}

// ---- chains ----

int match_chain(BlockCache& cache, const PrefixKey& prefix, int limit, std::vector<int32_t>& blocks, int group) {
  NodeId node = cache.tree().find_root(prefix.scope);
  int covered = 0;
  for (int index = 0; node != kNoNode && covered + cache.block_len() <= limit; ++index) {
    node = cache.tree().find(node, prefix, index);
    if (node == kNoNode || cache.stored(node, group) == kNoBlock) break;
    const int32_t block = cache.take(cache.stored(node, group));
    if (block == kNoBlock) break;
    blocks.push_back(block);
    covered += cache.block_len();
  }
  return covered;
}

void publish(BlockCache& cache, const PrefixKey& prefix, int index, std::vector<int32_t>& blocks) {
  PrefixTree& tree = cache.tree();
  const auto slot = static_cast<size_t>(index);
  const NodeId parent = index == 0 ? tree.get_root(prefix.scope) : cache.contents().node_of(blocks[slot - 1]);
  if (parent == kNoNode) throw internal_error("a block was published before the one it follows");
  const NodeId node = tree.get(parent, prefix, index);
  tree.ref(node);
  blocks[slot] = cache.attach(prefix, index, node, blocks[slot]);
  tree.unref(node);
}

}  // namespace turbomind
