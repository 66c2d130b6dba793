// Cache reader of a warp, for attention_decode.cuh: tiles of tokens from global memory into registers, in the order of
// operands (register_operand.cuh).
#pragma once

#include "kernels/cuda/attention/attention_task.cuh"
#include "kernels/cuda/attention/decode_plan.h"
#include "kernels/cuda/attention/register_operand.cuh"

namespace turbomind::cuda {

// Of a decoding kernel. A block has any number of warps, up to kWarps, which is how many a multiprocessor holds: there
// may be several blocks of few, or one of many.
template <CacheType kCacheType, int kHeadDim, int kRowTiles>
struct DecodeShape {
  static constexpr CacheType kType = kCacheType;
  static constexpr int kDim = kHeadDim;
  static constexpr int kQueryTiles = kRowTiles;  // of 8 rows
  static constexpr int kRows = 8 * kRowTiles;
  static constexpr int kTiles = decode_tile(kType) / 16;
  static constexpr int kTokens = 16 * kTiles;
  static constexpr int kWarps = decode_warps(kRows);
  static constexpr int kQueryWords = kRows * kDim / 2;
  // In shared memory queries come first; in the end the warps' sums [warps, rows, kSumStride], over them.
  static constexpr int kSumStride = kDim + 8;
  static constexpr size_t shared_bytes(int warps) {
    const int sums = warps * kRows * (kSumStride + 2);
    return sizeof(float) * static_cast<size_t>(sums > kQueryWords + warps ? sums : kQueryWords + warps);
  }
};

// A lane's part of a tile: scores of kThreadKeys neighbouring tokens, and values of kThreadValues.
template <class Shape>
class CacheStream {
 public:
  using Operand = RegisterOperand<Shape::kType, Shape::kDim>;
  static constexpr bool kIsQuantized = Operand::kIsQuantized;
  static constexpr int kM = Shape::kTiles;  // tiles of 16 tokens
  static constexpr int kRowBytes = Shape::kDim * Operand::kBits / 8;
  static constexpr int kThreadKeys = 2 * kM;
  static constexpr int kThreadValues = 4 * kM;

  __device__ __forceinline__ CacheStream(const AttentionTask& task, const DeviceSpan& span, int kv_head,
                                         const KeyRange& range)
      : task_(task),
        range_(range),
        lane_(threadIdx.x % kWarp),
        first_(task.params.pool + task.keys.first + kv_head * task.keys.head_bytes),
        blocks_(task.spans.blocks + span.first_block) {}

  uint32_t keys[kThreadKeys][Operand::kKeyWords] = {};
  uint32_t values[kThreadValues][Operand::kValueWords] = {};
  uint32_t key_scales[kM] = {};    // pairs of float16
  uint32_t value_scales[kM] = {};  // of the tokens that the lane has scores of
  uint32_t key_zeros = 0;          // bytes
  uint32_t value_zeros[kM] = {};   // bytes, of the tokens that it has values of

  __device__ __forceinline__ int thread_key(int unit) const { return unit * Shape::kTokens + lane_ / 4 * kThreadKeys; }
  __device__ __forceinline__ int thread_value(int unit) const {
    return unit * Shape::kTokens + lane_ % 4 * kThreadValues;
  }

  // The blocks that a lane's tokens of a unit are in; of tokens outside the range, one that is there.
  __device__ __forceinline__ void read_blocks(int unit) {
    if (unit >= range_.last_unit) return;
    const auto block = [&](int token) {
      return blocks_[min(max(token, range_.begin), range_.end - 1) >> task_.log_block_len];
    };
    key_block_ = block(thread_key(unit));
    value_block_ = block(thread_value(unit));
  }
  // Where the head's keys are in a block; its values are value_shift() further on.
  __device__ __forceinline__ const std::byte* start_of(int block) const {
    return first_ + static_cast<uint64_t>(static_cast<uint32_t>(block)) * static_cast<uint32_t>(task_.block_bytes);
  }
  __device__ __forceinline__ size_t value_shift() const { return task_.values.first - task_.keys.first; }
  __device__ __forceinline__ int slot_of(int token) const { return token & ((1 << task_.log_block_len) - 1); }
  __device__ __forceinline__ int quantized_bytes() const { return kRowBytes << task_.log_block_len; }

  __device__ __forceinline__ void load_keys(int unit) {
    const std::byte* block = start_of(key_block_);
    const int slot = slot_of(thread_key(unit));
    const std::byte* row = block + static_cast<uint32_t>(slot * kRowBytes + lane_ % 4 * (Operand::kKeyPiece * 4));
#pragma unroll
    for (int i = 0; i < kThreadKeys; ++i) Operand::load_key(row + i * kRowBytes, keys[i]);
    if constexpr (kIsQuantized) {
      read_scales(block, slot, key_scales);
      const std::byte* zeros = block + static_cast<uint32_t>(quantized_bytes() + (2 << task_.log_block_len) + slot);
      if constexpr (kM == 1) {
        key_zeros = *reinterpret_cast<const uint16_t*>(zeros);
      } else {
        key_zeros = *reinterpret_cast<const uint32_t*>(zeros);
      }
    }
  }
  __device__ __forceinline__ void load_values(int unit) {
    const std::byte* block = start_of(value_block_) + value_shift();
    const int slot = slot_of(thread_value(unit));
    const std::byte* row = block + static_cast<uint32_t>(slot * kRowBytes + lane_ / 4 * (Operand::kValuePiece * 4));
#pragma unroll
    for (int i = 0; i < kThreadValues; ++i) Operand::load_value(row + i * kRowBytes, values[i]);
    if constexpr (kIsQuantized) {
      const std::byte* zeros = block + static_cast<uint32_t>(quantized_bytes() + (2 << task_.log_block_len) + slot);
      if constexpr (kM == 1) {
        value_zeros[0] = *reinterpret_cast<const uint32_t*>(zeros);
      } else {
        const uint2 both = *reinterpret_cast<const uint2*>(zeros);
        value_zeros[0] = both.x;
        value_zeros[kM - 1] = both.y;
      }
    }
  }
  // Those of the values of the tokens that a lane has scores of, after load_keys of the same unit.
  __device__ __forceinline__ void load_value_scales(int unit) {
    if constexpr (kIsQuantized) {
      read_scales(start_of(key_block_) + value_shift(), slot_of(thread_key(unit)), value_scales);
    }
  }
  __device__ __forceinline__ void read_scales(const std::byte* block, int slot, uint32_t (&scales)[kM]) const {
    const std::byte* from = block + static_cast<uint32_t>(quantized_bytes() + slot * 2);
    if constexpr (kM == 1) {
      scales[0] = *reinterpret_cast<const uint32_t*>(from);
    } else {
      const uint2 both = *reinterpret_cast<const uint2*>(from);
      scales[0] = both.x;
      scales[kM - 1] = both.y;
    }
  }

 private:
  const AttentionTask& task_;
  const KeyRange range_;
  const int lane_;
  const std::byte* const first_;  // keys of the head in block 0
  const int32_t* const blocks_;   // of the sequence
  int key_block_ = 0;
  int value_block_ = 0;
};

}  // namespace turbomind::cuda
