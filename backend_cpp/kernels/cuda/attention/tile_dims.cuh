// The dimensions there are tile kernels for, and what these take.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/attention/cache_tile.cuh"
#include "kernels/paged_attention.h"

namespace turbomind::cuda {

// Calls `visit` with the next dimension that there is a kernel for, to which heads are padded.
template <CacheType kType, class Visit>
auto with_tile_dim(const CacheLayout& layout, Visit&& visit) {
  const int dim = std::max(layout.key_dim, layout.value_dim);
  constexpr int kEighty = kType == CacheType::kInt4 ? 96 : 80;  // int4 is read 32 dimensions at a time
  if (dim <= 64) return visit(std::integral_constant<int, 64>());
  if (dim <= 80) return visit(std::integral_constant<int, kEighty>());
  if (dim <= 96) return visit(std::integral_constant<int, 96>());
  if (dim <= 128) return visit(std::integral_constant<int, 128>());
  return visit(std::integral_constant<int, 256>());
}

// `none` for a float32 cache, which has no tile kernel; else visit(std::integral_constant) of the type.
template <class Result, class Visit>
Result with_tile_type(CacheType type, Result none, Visit&& visit) {
  if (type == CacheType::kFloat32) return none;
  if (type == CacheType::kBFloat16) return visit(std::integral_constant<CacheType, CacheType::kBFloat16>());
  if (type == CacheType::kInt8) return visit(std::integral_constant<CacheType, CacheType::kInt8>());
  return visit(std::integral_constant<CacheType, CacheType::kInt4>());
}

// Keys of a tile where keys are split.
inline int tile_keys(const CacheLayout& layout) {
  return with_tile_type(layout.type, 0, [&]<CacheType kType>(std::integral_constant<CacheType, kType>) {
    return with_tile_dim<kType>(layout, [](auto dim) { return int{TileShape<kType, dim, true>::kKeys}; });
  });
}

// Shared memory of a block of a tile kernel (attend_tile.cuh), in bytes.
inline size_t tile_shared_bytes(const CacheLayout& layout, bool is_split_keys) {
  return with_tile_type(layout.type, ~size_t{0}, [&]<CacheType kType>(std::integral_constant<CacheType, kType>) {
    return with_tile_dim<kType>(layout, [&](auto dim) -> size_t {
      return is_split_keys ? TileShape<kType, dim, true>::kSharedBytes : TileShape<kType, dim, false>::kSharedBytes;
    });
  });
}

}  // namespace turbomind::cuda
