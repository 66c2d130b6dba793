// Operands of m16n8k16 (ptx.h) from quantized rows that a warp loads into registers, for attention_decode.cuh.
//
//   keys     A of k q^T: a lane (g = lane / 4, t = lane % 4) has of its keys (rows g and g + 8) every fourth piece
//   values   A of v^T w^T: a lane has of its tokens (columns 2 t, 2 t + 1, 2 t + 8, 2 t + 9) every eighth piece
// Pieces are up to 16 bytes, so that a warp's loads are whole sectors. In which order dimensions are multiplied is
// free, and so is which row of the result a dimension is: both are the order in which codes come out of a word.
//
// Codes come out as float16 whose mantissa ends in them: offset + code, exact, for one instruction for two codes (int4:
// 1.25). Offsets are 1024, and 64 for the odd nibbles, which are 4 bits further up. bfloat16 stays as it is.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/paged_attention.h"

namespace turbomind::cuda {

template <CacheType kType, int kDim>
struct RegisterOperand {
  static constexpr int kBits = bits_of(kType);
  static constexpr bool kIsQuantized = kType != CacheType::kBFloat16;
  static constexpr int kValues = 32 / kBits;  // of a word
  static constexpr int kPairs = kValues / 2;  // pairs of codes of a word, or of a half of two words
  static constexpr int kRowPairs = kDim / 8;  // pairs that a lane has of a key, and dimensions that it has of a token
  static constexpr int kKeyWords = kDim * kBits / 8 / 4 / 4;    // of a key, of a lane
  static constexpr int kValueWords = kDim * kBits / 8 / 8 / 4;  // of a token, of a lane
  static constexpr int kKeyPiece = kKeyWords < 4 ? kKeyWords : 4;
  static constexpr int kValuePiece = kValueWords < 4 ? kValueWords : 4;
  static_assert(kKeyWords % kKeyPiece == 0 && kValueWords % kValuePiece == 0);

  // Offset of the codes of a pair.
  static constexpr int offset(int pair) { return !kIsQuantized ? 0 : kBits == 4 && pair % 2 == 1 ? 64 : 1024; }
  // Two times that number as float16, in a word.
  static constexpr uint32_t two_of(int number) {
    return number == 64 ? 0x54005400u : number == 1024 ? 0x64006400u : number == 1 ? 0x3C003C00u : 0u;
  }

  // Where dimension d of a query is multiplied: pair number, place t of the lane, and element of the pair.
  struct KeySlot {
    int pair;
    int quad_lane;
    int element;
  };
  __device__ static __forceinline__ KeySlot key_slot(int d) {
    constexpr int kOfPiece = kKeyPiece * kValues;
    const int word = d / (4 * kOfPiece) * kKeyPiece + d % kOfPiece / kValues;
    const int x = d % kValues;
    const int i = kBits == 4 ? x % 4 : x / 2;
    const int element = kBits == 4 ? x / 4 : x % 2;
    return {word * kPairs + i, d / kOfPiece % 4, element};
  }
  // The dimension that is number i of a lane's, g = lane / 4.
  __device__ static constexpr int value_dim(int i, int g) {
    const int word = i / kValues;
    const int piece = word / kValuePiece;
    return ((piece * 8 + g) * kValuePiece + word % kValuePiece) * kValues + i % kValues;
  }

  // Pair i of a word.
  __device__ static __forceinline__ uint32_t pair_of(uint32_t word, int i) {
    if constexpr (kBits == 16) {
      return word;
    } else if constexpr (kBits == 8) {
      return __byte_perm(word, 0x64646464u, i == 0 ? 0x4140 : 0x4342);
    } else {
      const uint32_t from = i < 2 ? word : word >> 8;
      // (a & b) | c
      return i % 2 == 0 ? lop3<0xEA>(from, 0x000F000Fu, 0x64006400u) : lop3<0xEA>(from, 0x00F000F0u, 0x54005400u);
    }
  }
  __device__ static __forceinline__ uint32_t key_pair(const uint32_t (&words)[kKeyWords], int pair) {
    return pair_of(words[pair / kPairs], pair % kPairs);
  }
  // Dimension number i of a lane's, of two tokens.
  __device__ static __forceinline__ uint32_t value_pair(const uint32_t (&one)[kValueWords],
                                                        const uint32_t (&other)[kValueWords], int i) {
    const int word = i / kValues;
    const bool is_low = i % kValues < kPairs;
    // int8: one's first byte, the other's first, ...; otherwise one's 16 bits and the other's.
    const uint32_t both =
        __byte_perm(one[word], other[word], kBits == 8 ? (is_low ? 0x5140 : 0x7362) : (is_low ? 0x5410 : 0x7632));
    return pair_of(both, i % kPairs);
  }
  // offset + the bytes `first` and first + 4 of one and other.
  __device__ static __forceinline__ uint32_t zero_pair(uint32_t one, uint32_t other, int first) {
    return __byte_perm(__byte_perm(one, other, first < 2 ? 0x5140 : 0x7362), 0x64646464u,
                       first % 2 == 0 ? 0x4140 : 0x4342);
  }

  template <int kWords, int kPiece, int kLanes>
  __device__ static __forceinline__ void load(const std::byte* row, uint32_t (&words)[kWords]) {
#pragma unroll
    for (int j = 0; j < kWords / kPiece; ++j) {
      const std::byte* from = row + j * kLanes * kPiece * 4;
      uint32_t* to = words + j * kPiece;
      if constexpr (kPiece == 4) {
        const uint4 piece = load_once_16(from);
        to[0] = piece.x;
        to[1] = piece.y;
        to[2] = piece.z;
        to[3] = piece.w;
      } else if constexpr (kPiece == 2) {
        const uint2 piece = load_once_8(from);
        to[0] = piece.x;
        to[1] = piece.y;
      } else {
        to[0] = load_once_4(from);
      }
    }
  }
  // `row`: its first piece of this lane, number t or g.
  __device__ static __forceinline__ void load_key(const std::byte* row, uint32_t (&words)[kKeyWords]) {
    load<kKeyWords, kKeyPiece, 4>(row, words);
  }
  __device__ static __forceinline__ void load_value(const std::byte* row, uint32_t (&words)[kValueWords]) {
    load<kValueWords, kValuePiece, 8>(row, words);
  }

  __device__ static __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    if constexpr (kIsQuantized) {
      mma_f16(d, a, b);
    } else {
      mma_bf16(d, a, b);
    }
  }
  __device__ static __forceinline__ uint32_t pack(float low, float high) {
    uint32_t bits;
    if constexpr (kIsQuantized) {
      const __half2 pair = __floats2half2_rn(low, high);
      memcpy(&bits, &pair, sizeof(bits));
    } else {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
      memcpy(&bits, &pair, sizeof(bits));
    }
    return bits;
  }
};

}  // namespace turbomind::cuda
