// Tiles of keys and values in shared memory, for attention_tile.cuh: their sizes, and how they come there.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/attention/attention_task.cuh"

namespace turbomind::cuda {

inline constexpr int kHalvedKeys = 64;  // half of a tile that splits may halve

template <CacheType kType, int kDim, bool kSplitKeys>
struct TileShape {
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr bool kIsQuantized = kType == CacheType::kInt8 || kType == CacheType::kInt4;
  // Blocks that a multiprocessor should hold, which caps registers: without, the compiler reads ahead into all of them.
  static constexpr int kBlocks = kDim > 128 ? 1 : !kSplitKeys && (kDim > 64 || kIsQuantized) ? 2 : 3;
  static constexpr bool kQueryInShared = kDim > (kSplitKeys ? 96 : 128);
  static constexpr int kRows = kSplitKeys ? 16 : 64;
  static constexpr int kKeys = kDim > 128 ? (kSplitKeys ? 64 : 32) : kSplitKeys && kIsQuantized ? 128 : 64;
  static constexpr bool kHasHalves = kSplitKeys && kKeys == 2 * kHalvedKeys;  // splits may be half a tile
  static constexpr int kWarpKeys = kSplitKeys ? kKeys / kWarps : kKeys;
  static constexpr int kRowBytes = kDim * bits_of(kType) / 8;
  static constexpr int kStride = (kRowBytes / 16 | 1) * 16;  // odd: rows begin in different banks
  // Shared memory, in bytes: two stages of keys, values, scales and zeros; the queries.
  static constexpr int kTileBytes = kKeys * kStride;
  static constexpr int kScaleBytes = kIsQuantized ? kKeys * 3 : 0;
  static constexpr int kStageBytes = 2 * kTileBytes + 2 * kScaleBytes;
  static constexpr int kQueryBytes = kQueryInShared ? kRows * kDim * 2 : 0;
  static constexpr int kSumBytes = kSplitKeys ? kWarps * kRows * (kDim + 2) * 4 : 0;  // in the end, over all of it
  static constexpr int kSharedBytes =
      2 * kStageBytes + kQueryBytes > kSumBytes ? 2 * kStageBytes + kQueryBytes : kSumBytes;
  static_assert(kRowBytes % 16 == 0 && kWarpKeys % 16 == 0);
};

// One part of a tile in shared memory: codes, then scales [kKeys] half, then zeros [kKeys] uint8.
template <class Shape>
struct TilePart {
  std::byte* quantized;

  // Of keys `key` and key + 1; key is even.
  __device__ __forceinline__ float2 scales(int key) const {
    return __half22float2(*reinterpret_cast<const __half2*>(quantized + Shape::kTileBytes + key * 2));
  }
  // Less kCentre.
  template <int kCentre>
  __device__ __forceinline__ float2 zeros(int key) const {
    const int both = *reinterpret_cast<const uint16_t*>(quantized + Shape::kTileBytes + Shape::kKeys * 2 + key);
    return make_float2(static_cast<float>((both & 255) - kCentre), static_cast<float>((both >> 8) - kCentre));
  }
};

// The ids of the blocks that the keys of a tile are in, each with a lane of every warp; tiles begin at a multiple of
// kKeys. Read a tile ahead, so that copies need not wait for them.
template <int kKeys>
class TileBlocks {
 public:
  // `first`: the tile's first token.
  __device__ __forceinline__ void read(const CacheArea& area, int first, const KeyRange& range) {
    const int log = area.task.log_block_len;
    const int lane = threadIdx.x % kWarp;
    const int block = (first >> log) + lane;
    const bool is_seen = (lane << log) < kKeys && (block + 1) << log > range.begin && block << log < range.end;
    id_ = is_seen ? area.blocks[block] : 0;
  }
  // Of the block that key 0 .. kKeys - 1 of the tile is in. All lanes call this.
  __device__ __forceinline__ int of(const CacheArea& area, int key) const {
    return __shfl_sync(kAllLanes, id_, key >> area.task.log_block_len);
  }

 private:
  int id_;
};

// Starts copying rows of up to kRowBytes, kBytes at a time; what is not valid becomes zeros. A thread copies the same
// piece of every kStep-th key.
template <class Shape, int kBytes>
__device__ __forceinline__ void copy_quantized(std::byte* to, const CacheArea& area,
                                               const TileBlocks<Shape::kKeys>& blocks, int first,
                                               const KeyRange& range) {
  constexpr int kPieces = Shape::kRowBytes / kBytes;
  constexpr int kStep = Shape::kThreads / kPieces;
  constexpr int kRounds = divide_up(Shape::kKeys, kStep);
  const int first_key = threadIdx.x / kPieces;
  const int at = threadIdx.x % kPieces * kBytes;
  const int row_bytes = static_cast<int>(area.region.row_bytes);
  const bool has_piece = at < row_bytes;
  std::byte* to_key = to + first_key * Shape::kStride + at;
  const std::byte* from = area.first + at;
#pragma unroll(kBytes != 16 ? 1 : Shape::kBlocks == 1 ? 2 : 4)
  for (int i = 0; i < kRounds; ++i) {
    const int key = first_key + i * kStep;
    const int token = first + key;
    const int id = blocks.of(area, min(key, Shape::kKeys - 1));
    const bool is_valid = has_piece && token >= range.begin && token < range.end;
    const std::byte* row =
        from + static_cast<int64_t>(id) * static_cast<int64_t>(area.task.block_bytes) + area.slot(token) * row_bytes;
    if (Shape::kThreads % kPieces != 0 && first_key >= kStep) continue;
    if (Shape::kKeys % kStep != 0 && key >= Shape::kKeys) continue;
    std::byte* target = to_key + i * (kStep * Shape::kStride);
    if constexpr (kBytes == 16) cp_async_16(target, row, is_valid);
    if constexpr (kBytes == 8) cp_async_8(target, row, is_valid);
    if constexpr (kBytes == 4) cp_async_4(target, row, is_valid);
  }
}

// Scales two and zeros four at a time, a piece a thread; groups of four tokens never cross a block. Of a group that is
// valid in part all is read, so scales of tokens that no row sees may be anything.
template <class Shape>
__device__ __forceinline__ void copy_scales(std::byte* to, const CacheArea& area,
                                            const TileBlocks<Shape::kKeys>& blocks, int first, const KeyRange& range) {
  constexpr int kPieces = 3;  // of four tokens
  static_assert(Shape::kKeys / 4 * kPieces <= Shape::kThreads);
  const int key = static_cast<int>(threadIdx.x) / kPieces * 4;
  const int piece = static_cast<int>(threadIdx.x) % kPieces;
  const int token = first + key;
  const int id = blocks.of(area, min(key, Shape::kKeys - 1));
  if (key >= Shape::kKeys) return;
  const int offset = piece < 2 ? area.slot(token) * 2 + piece * 4 : (2 << area.task.log_block_len) + area.slot(token);
  const std::byte* from = area.first + static_cast<int64_t>(id) * static_cast<int64_t>(area.task.block_bytes) +
                          area.region.quantized_bytes + offset;
  const bool is_valid = token + 4 > range.begin && token < range.end;
  cp_async_4(piece < 2 ? to + key * 2 + piece * 4 : to + Shape::kKeys * 2 + key, from, is_valid);
}

template <class Shape>
__device__ __forceinline__ void copy_part(std::byte* to, const CacheArea& area, const TileBlocks<Shape::kKeys>& blocks,
                                          int first, const KeyRange& range) {
  if (area.region.row_bytes % 16 == 0) {
    copy_quantized<Shape, 16>(to, area, blocks, first, range);
  } else if (area.region.row_bytes % 8 == 0) {
    copy_quantized<Shape, 8>(to, area, blocks, first, range);
  } else {
    copy_quantized<Shape, 4>(to, area, blocks, first, range);
  }
  if constexpr (Shape::kIsQuantized) copy_scales<Shape>(to + Shape::kTileBytes, area, blocks, first, range);
}

// ---- the dimensions and types there are tile kernels for, and what these take ----

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

// Shared memory of a block of a tile kernel (attention_tile.cuh), in bytes.
inline size_t tile_shared_bytes(const CacheLayout& layout, bool is_split_keys) {
  return with_tile_type(layout.type, ~size_t{0}, [&]<CacheType kType>(std::integral_constant<CacheType, kType>) {
    return with_tile_dim<kType>(layout, [&](auto dim) -> size_t {
      return is_split_keys ? TileShape<kType, dim, true>::kSharedBytes : TileShape<kType, dim, false>::kSharedBytes;
    });
  });
}

}  // namespace turbomind::cuda
