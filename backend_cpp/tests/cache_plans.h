// Plans of small caches.
#pragma once

#include "model/cache_plan.h"

namespace turbomind::testing {

inline CacheGroup small_group(MemoryKind kind, int block_len, int window = 0, int pages = 1) {
  CacheGroup group;
  group.kind = kind;
  group.window = window;
  group.block_len = kind == MemoryKind::kState ? 0 : block_len;
  group.pieces = pages;
  group.piece_bytes = static_cast<size_t>(block_len) * sizeof(int32_t);
  return group;
}

// One group, whose blocks are pages, that sees everything or so far back.
inline CachePlan small_plan(int block_len, int window = 0) {
  return plan_cache(block_len, {small_group(window > 0 ? MemoryKind::kWindow : MemoryKind::kPaged, block_len, window)});
}

}  // namespace turbomind::testing
