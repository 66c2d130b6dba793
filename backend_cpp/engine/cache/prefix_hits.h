// Length of a prefix hit, given which blocks exist.
#pragma once

#include <vector>

#include "model/cache_plan.h"

namespace turbomind {

// Whether a prefix hit needs the blocks of a group.
inline bool bounds_hits(const CacheGroup& group) {
  return group.kind == MemoryKind::kPaged || group.kind == MemoryKind::kWindow || group.kind == MemoryKind::kState;
}

// The group whose contents are announced: where all tokens are kept, or, if nowhere, what a window keeps; -1: none.
inline int observed_group(const CachePlan& plan) {
  const int paged = plan.group_of(MemoryKind::kPaged);
  return paged >= 0 ? paged : plan.group_of(MemoryKind::kWindow);
}

// The first of the blocks that a hit of `tokens` tokens needs in a group; for a state, which needs one, the last.
inline int first_needed(const CachePlan& plan, const CacheGroup& group, int tokens) {
  return group.kind == MemoryKind::kState ? tokens / plan.block_len - 1 : group.first_block_seen(tokens);
}

// Whether there are the whole blocks that a hit of `tokens` tokens needs whose last ones, and the state, are in a part
// of a block.
template <class IsThere>
bool has_blocks_before_part(const CachePlan& plan, int tokens, IsThere is_there) {
  for (int index = 0; index < static_cast<int>(plan.groups.size()); ++index) {
    const CacheGroup& group = plan.groups[static_cast<size_t>(index)];
    if (!bounds_hits(group) || group.kind == MemoryKind::kState) continue;
    for (int i = group.first_block_seen(tokens); i < tokens / plan.block_len; ++i) {
      if (!is_there(i, index)) return false;
    }
  }
  return true;
}

// The longest hit in blocks, at most `limit`, for which every group has the blocks it needs: `is_there(index, group)`
// is whether a group's block `index` exists.
template <class IsThere>
int longest_hit(const CachePlan& plan, int limit, IsThere is_there) {
  std::vector<bool> is_valid(static_cast<size_t>(limit) + 1, true);
  for (int index = 0; index < static_cast<int>(plan.groups.size()); ++index) {
    const CacheGroup& group = plan.groups[static_cast<size_t>(index)];
    if (!bounds_hits(group)) continue;
    int run = 0;  // consecutive existing blocks up to here
    for (int count = 1; count <= limit; ++count) {
      run = is_there(count - 1, index) ? run + 1 : 0;
      if (run < count - first_needed(plan, group, count * plan.block_len)) is_valid[static_cast<size_t>(count)] = false;
    }
  }
  int count = limit;
  while (!is_valid[static_cast<size_t>(count)]) --count;
  return count;
}

}  // namespace turbomind
