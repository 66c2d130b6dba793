// Operands of mma_bf16 (ptx.h) from the three kinds of cache that tensor cores read.
//
// An operand reads a tile that is in shared memory token by token, kStride bytes each:
//   keys     B of q k^T: for 16 keys and the dimensions of unit `unit`, b[i][j] for multiplication i of the unit and
//            keys 8 j .. 8 j + 7
//   values   B of weights v: for 16 tokens and the dimensions of unit `unit`, b[i] for column tile i of the unit
// In which order dimensions are multiplied and results are in columns is free. The rounded kinds choose it so that
// what a lane reads at once are its own elements:
//   key_dim(step, place, i)     dimension of the query that element i (0 .. 3: a[0] low, high, a[2] low, high) of a
//                               lane at `quad_lane` of its group multiplies in multiplication `step`
//   value_dim(tile, column)     dimension that column 0 .. 7 of column tile `tile` of the result is
// Codes come out less kCentre, so that they are small: exact in bfloat16, and sums cancel little.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/paged_attention.h"

namespace turbomind::cuda {

template <CacheType kType, int kStride>
struct CacheOperand;

template <int kStride>
struct CacheOperand<CacheType::kBFloat16, kStride> {
  static constexpr int kCentre = 0;
  static constexpr int kKeyUnit = 1;    // multiplications, of 16 dimensions each, that keys() serves
  static constexpr int kValueUnit = 2;  // column tiles, of 8 dimensions each, that values() serves

  __device__ static constexpr int key_dim(int step, int quad_lane, int i) {
    return 16 * step + 2 * quad_lane + (i & 1) + (i >> 1) * 8;
  }
  __device__ static constexpr int value_dim(int tile, int column) { return 8 * tile + column; }

  __device__ static __forceinline__ void keys(const std::byte* tile, int lane, int unit, uint32_t (&b)[1][2][2]) {
    uint32_t words[4];  // keys 0 - 7: dimensions 0 - 7, 8 - 15; keys 8 - 15 the same
    ldmatrix_x4(words, tile + ((lane & 7) + (lane >> 4) * 8) * kStride + unit * 32 + (lane >> 3 & 1) * 16);
    b[0][0][0] = words[0];
    b[0][0][1] = words[1];
    b[0][1][0] = words[2];
    b[0][1][1] = words[3];
  }

  __device__ static __forceinline__ void values(const std::byte* tile, int lane, int unit, uint32_t (&b)[2][2]) {
    uint32_t words[4];  // dimensions 0 - 7: tokens 0 - 7, 8 - 15; dimensions 8 - 15 the same
    ldmatrix_x4_transposed(words, tile + (lane & 15) * kStride + unit * 32 + (lane >> 4) * 16);
    b[0][0] = words[0];
    b[0][1] = words[1];
    b[1][0] = words[2];
    b[1][1] = words[3];
  }
};

// Bytes 0 and 2 of a word, less 128, as bfloat16. The lower seven bits after the exponent of 2^7 are 128 + these; less
// 256 where the upper bit is not set, less 128 where it is.
__device__ __forceinline__ uint32_t centred_bytes(uint32_t word) {
  const uint32_t lower = lop3<0xEA>(word, 0x007F007Fu, 0x43004300u);  // (a & b) | c
  const uint32_t upper = lop3<0x6A>(word, 0x00800080u, 0x43804380u);  // (a & b) ^ c
  __nv_bfloat162 pair;
  __nv_bfloat162 less;
  memcpy(&pair, &lower, sizeof(pair));
  memcpy(&less, &upper, sizeof(less));
  pair = __hsub2(pair, less);
  uint32_t result;
  memcpy(&result, &pair, sizeof(result));
  return result;
}

template <int kStride>
struct CacheOperand<CacheType::kInt8, kStride> {
  static constexpr int kCentre = 128;
  static constexpr int kKeyUnit = 1;
  static constexpr int kValueUnit = 2;

  // A lane's word of a key: four neighbours, the first and the third before the others.
  __device__ static constexpr int key_dim(int step, int quad_lane, int i) {
    return 16 * step + 4 * quad_lane + (i & 1) * 2 + (i >> 1);
  }
  // Even dimensions are one tile, odd ones the next.
  __device__ static constexpr int value_dim(int tile, int column) { return tile / 2 * 16 + 2 * column + tile % 2; }

  __device__ static __forceinline__ void keys(const std::byte* tile, int lane, int unit, uint32_t (&b)[1][2][2]) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t word =
          *reinterpret_cast<const uint32_t*>(tile + (8 * j + lane / 4) * kStride + unit * 16 + lane % 4 * 4);
      b[0][j][0] = centred_bytes(word);
      b[0][j][1] = centred_bytes(word >> 8);
    }
  }

  __device__ static __forceinline__ void values(const std::byte* tile, int lane, int unit, uint32_t (&b)[2][2]) {
    uint32_t words[2];  // pairs of dimensions of two tokens: tokens 0 - 7, 8 - 15
    ldmatrix_x2_transposed(words, tile + (lane & 15) * kStride + unit * 16);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      b[0][j] = centred_bytes(words[j]);
      b[1][j] = centred_bytes(words[j] >> 8);
    }
  }
};

// Nibble i of both halves of a word, less 8, as bfloat16: after the exponent of 2^7, where a step is 1.
__device__ __forceinline__ uint32_t centred_nibbles(uint32_t word, int i) {
  const uint32_t bits = lop3<0xEA>(word >> 4 * i, 0x000F000Fu, 0x43004300u);  // (a & b) | c
  __nv_bfloat162 pair;
  memcpy(&pair, &bits, sizeof(pair));
  pair = __hsub2(pair, __floats2bfloat162_rn(136.0f, 136.0f));
  uint32_t result;
  memcpy(&result, &pair, sizeof(result));
  return result;
}

template <int kStride>
struct CacheOperand<CacheType::kInt4, kStride> {
  static constexpr int kCentre = 8;
  static constexpr int kKeyUnit = 2;
  static constexpr int kValueUnit = 4;

  // A lane's word of a key is eight neighbours; of two multiplications, the first takes 0, 4, 1, 5.
  __device__ static constexpr int key_dim(int step, int quad_lane, int i) {
    return step / 2 * 32 + 8 * quad_lane + step % 2 * 2 + (i & 1) * 4 + (i >> 1);
  }
  // Every fourth dimension is a tile.
  __device__ static constexpr int value_dim(int tile, int column) { return tile / 4 * 32 + 4 * column + tile % 4; }

  __device__ static __forceinline__ void keys(const std::byte* tile, int lane, int unit, uint32_t (&b)[2][2][2]) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t word =
          *reinterpret_cast<const uint32_t*>(tile + (8 * j + lane / 4) * kStride + unit * 16 + lane % 4 * 4);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        b[i][j][0] = centred_nibbles(word, 2 * i);
        b[i][j][1] = centred_nibbles(word, 2 * i + 1);
      }
    }
  }

  __device__ static __forceinline__ void values(const std::byte* tile, int lane, int unit, uint32_t (&b)[4][2]) {
    uint32_t words[2];  // four neighbours of two tokens: tokens 0 - 7, 8 - 15
    ldmatrix_x2_transposed(words, tile + (lane & 15) * kStride + unit * 16);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) b[i][j] = centred_nibbles(words[j], i);
    }
  }
};

}  // namespace turbomind::cuda
