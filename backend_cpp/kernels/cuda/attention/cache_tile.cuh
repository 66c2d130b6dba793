// Tiles of keys and values in shared memory, for attend_tile.cuh: their sizes, and how they come there.
#pragma once

#include "kernels/cuda/attention/attention_task.cuh"

namespace turbomind::cuda {

template <CacheType kType, int kDim, bool kSplitKeys>
struct TileShape {
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr bool kIsRounded = kType == CacheType::kInt8 || kType == CacheType::kInt4;
  // Blocks that a multiprocessor should hold, which caps registers: without, the compiler reads ahead into all of them.
  static constexpr int kBlocks = kDim > 128 ? 1 : !kSplitKeys && (kDim > 64 || kIsRounded) ? 2 : 3;
  static constexpr bool kQueryInShared = kDim > (kSplitKeys ? 96 : 128);
  static constexpr int kRows = kSplitKeys ? 16 : 64;
  static constexpr int kKeys = !kSplitKeys && kDim > 128 ? 32 : 64;
  static constexpr int kWarpKeys = kSplitKeys ? kKeys / kWarps : kKeys;
  static constexpr int kRowBytes = kDim * bits_of(kType) / 8;
  static constexpr int kStride = (kRowBytes / 16 | 1) * 16;  // odd: rows begin in different banks
  // Shared memory, in bytes: two stages of keys, values, scales and zeros; the queries.
  static constexpr int kTileBytes = kKeys * kStride;
  static constexpr int kScaleBytes = kIsRounded ? kKeys * 3 : 0;
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
  std::byte* codes;

  __device__ __forceinline__ float scale(int key) const {
    return __half2float(reinterpret_cast<const __half*>(codes + Shape::kTileBytes)[key]);
  }
  __device__ __forceinline__ float zero(int key) const {
    return static_cast<float>(reinterpret_cast<const uint8_t*>(codes + Shape::kTileBytes + Shape::kKeys * 2)[key]);
  }
};

// Starts copying rows of up to kRowBytes, kBytes at a time; what is not valid becomes zeros.
template <class Shape, int kBytes>
__device__ __forceinline__ void copy_codes(std::byte* to, const CacheArea& area, int first, const KeyRange& range) {
  constexpr int kPieces = Shape::kRowBytes / kBytes;
#pragma unroll 2
  for (int i = threadIdx.x; i < Shape::kKeys * kPieces; i += Shape::kThreads) {
    const int key = i / kPieces;
    const int at = i % kPieces * kBytes;
    const int token = first + key;
    const bool is_valid = token >= range.begin && token < range.end && at < static_cast<int>(area.place.row_bytes);
    const std::byte* from = is_valid ? area.codes(token) + at : area.first;
    std::byte* place = to + key * Shape::kStride + at;
    if constexpr (kBytes == 16) cp_async_16(place, from, is_valid);
    if constexpr (kBytes == 8) cp_async_8(place, from, is_valid);
    if constexpr (kBytes == 4) cp_async_4(place, from, is_valid);
  }
}

// Scales two and zeros four at a time; groups of four tokens never cross a block. Of a group that is valid in part all
// is read, so scales of tokens that no row sees may be anything.
template <class Shape>
__device__ __forceinline__ void copy_scales(std::byte* to, const CacheArea& area, int first, const KeyRange& range) {
  constexpr int kPieces = 3;  // of four tokens
  for (int i = threadIdx.x; i < Shape::kKeys / 4 * kPieces; i += Shape::kThreads) {
    const int key = i / kPieces * 4;
    const int token = first + key;
    const int piece = i % kPieces;
    const bool is_valid = token + 4 > range.begin && token < range.end;
    const std::byte* from = !is_valid ? area.first : piece < 2 ? area.scale(token) + piece * 4 : area.zero(token);
    cp_async_4(piece < 2 ? to + key * 2 + piece * 4 : to + Shape::kKeys * 2 + key, from, is_valid);
  }
}

template <class Shape>
__device__ __forceinline__ void copy_part(std::byte* to, const CacheArea& area, int first, const KeyRange& range) {
  if (area.place.row_bytes % 16 == 0) {
    copy_codes<Shape, 16>(to, area, first, range);
  } else if (area.place.row_bytes % 8 == 0) {
    copy_codes<Shape, 8>(to, area, first, range);
  } else {
    copy_codes<Shape, 4>(to, area, first, range);
  }
  if constexpr (Shape::kIsRounded) copy_scales<Shape>(to + Shape::kTileBytes, area, first, range);
}

}  // namespace turbomind::cuda
