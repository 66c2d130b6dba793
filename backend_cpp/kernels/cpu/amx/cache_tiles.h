// Keys and values of a cache block as B tiles of bfloat16. Included by kernels_isa.cc only.
//
// A bfloat16 cache is as tiles want it: keys [key_dim / 2, block_len, 2], values [block_len / 2, value_dim, 2]. Codes
// of quantized caches are widened into that order, less their zero points: integers up to 255 are exact in bfloat16.
// Elements of a tile beyond the matrix are 0.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu/amx/bf16_rows.h"
#include "kernels/cpu/attention_block.h"

namespace turbomind::TM_ISA {

inline int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// A matrix of pairs along the summed axis, [depth / 2, width, 2].
struct PairMatrix {
  const bf16* data;
  int depth;
  int width;

  // Loads summed elements [k, k + 32) of columns [column, column + 16).
  template <int kTile>
  void load(int k, int column) const {
    const bf16* source = data + (static_cast<size_t>(k / 2) * width + column) * 2;
    if (k + kTileDepth <= depth && column + kTileSide <= width) {
      tile_load<kTile>(source, static_cast<size_t>(width) * 2 * sizeof(bf16));
      return;
    }
    alignas(64) bf16 padded[kTileSide][kTileDepth] = {};
    const int columns = std::min(kTileSide, width - column);
    for (int pair = 0; 2 * pair < std::min(kTileDepth, depth - k); ++pair) {
      std::copy_n(source + static_cast<size_t>(pair) * width * 2, 2 * columns, padded[pair]);
      if (k + 2 * pair + 1 < depth) continue;
      for (int i = 0; i < columns; ++i) padded[pair][2 * i + 1] = bf16{0};
    }
    tile_load<kTile>(padded, kTileBytes);
  }
};

// Exact bfloat16 of two vectors of small integers, in turns.
inline void store_pairs_of(bf16* target, Vec even, Vec odd, int lanes) {
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even), 16);
  const __m512i high = _mm512_and_si512(_mm512_castps_si512(odd), _mm512_set1_epi32(static_cast<int>(0xFFFF0000u)));
  const __m512i pairs = _mm512_or_si512(low, high);
  std::memcpy(target, &pairs, static_cast<size_t>(lanes) * 2 * sizeof(bf16));
}

inline Vec less_zeros(IVec quantized, Vec zeros) {
  return add(to_floats(quantized), mul(zeros, broadcast(-1.0f)));
}

inline IVec load_quantized(const uint8_t* quantized, int lanes) {
  uint8_t whole[kLanes] = {};
  std::memcpy(whole, quantized, static_cast<size_t>(lanes));
  return upcast_bytes(whole);
}

// The keys of a block's first `tokens` tokens, rounded up to whole tiles.
inline PairMatrix dequantize_keys(const Int8Value* keys, const Rounding& rounding, int key_dim, int block_len,
                                  int tokens, bf16* workspace) {
  for (int pair = 0; 2 * pair < key_dim; ++pair) {
    const uint8_t* even = &keys[static_cast<size_t>(2 * pair) * block_len].bits;
    for (int t = 0; t < tokens; t += kLanes) {
      const Vec zeros = to_floats(upcast_bytes(rounding.zeros + t));
      store_pairs_of(workspace + (static_cast<size_t>(pair) * block_len + t) * 2,
                     less_zeros(upcast_bytes(even + t), zeros), less_zeros(upcast_bytes(even + block_len + t), zeros),
                     kLanes);
    }
  }
  return {workspace, key_dim, block_len};
}
inline PairMatrix dequantize_keys(const Int4Value* keys, const Rounding& rounding, int key_dim, int block_len,
                                  int tokens, bf16* workspace) {
  for (int pair = 0; 2 * pair < key_dim; ++pair) {
    const uint8_t* both = &keys[static_cast<size_t>(pair) * block_len].bits;
    for (int t = 0; t < tokens; t += kLanes) {
      const Vec zeros = to_floats(upcast_bytes(rounding.zeros + t));
      const IVec quantized = upcast_bytes(both + t);
      store_pairs_of(workspace + (static_cast<size_t>(pair) * block_len + t) * 2,
                     less_zeros(low_halves(quantized), zeros), less_zeros(high_halves(quantized), zeros), kLanes);
    }
  }
  return {workspace, key_dim, block_len};
}
inline PairMatrix dequantize_keys(const bf16* keys, const Rounding&, int key_dim, int block_len, int, bf16*) {
  return {keys, key_dim, block_len};
}

// The values of a block's first `tokens` tokens.
inline PairMatrix dequantize_values(const Int8Value* values, const Rounding& rounding, int value_dim, int tokens,
                                    bf16* workspace) {
  for (int t = 0; t < tokens; t += 2) {
    const uint8_t* even = &values[static_cast<size_t>(t) * value_dim].bits;
    const bool is_last = t + 1 == tokens;
    for (int d = 0; d < value_dim; d += kLanes) {
      const int lanes = std::min(kLanes, value_dim - d);
      const Vec first = less_zeros(load_quantized(even + d, lanes), broadcast(rounding.zeros[t]));
      const Vec second =
          is_last ? zero() : less_zeros(load_quantized(even + value_dim + d, lanes), broadcast(rounding.zeros[t + 1]));
      store_pairs_of(workspace + (static_cast<size_t>(t / 2) * value_dim + d) * 2, first, second, lanes);
    }
  }
  return {workspace, tokens, value_dim};
}
inline PairMatrix dequantize_values(const Int4Value* values, const Rounding& rounding, int value_dim, int tokens,
                                    bf16* workspace) {
  for (int t = 0; t < tokens; t += 2) {
    const uint8_t* both = &values[static_cast<size_t>(t / 2) * value_dim].bits;
    const bool is_last = t + 1 == tokens;
    for (int d = 0; d < value_dim; d += kLanes) {
      const int lanes = std::min(kLanes, value_dim - d);
      const IVec quantized = load_quantized(both + d, lanes);
      const Vec first = less_zeros(low_halves(quantized), broadcast(rounding.zeros[t]));
      const Vec second = is_last ? zero() : less_zeros(high_halves(quantized), broadcast(rounding.zeros[t + 1]));
      store_pairs_of(workspace + (static_cast<size_t>(t / 2) * value_dim + d) * 2, first, second, lanes);
    }
  }
  return {workspace, tokens, value_dim};
}
inline PairMatrix dequantize_values(const bf16* values, const Rounding&, int value_dim, int tokens, bf16*) {
  return {values, tokens, value_dim};
}

}  // namespace turbomind::TM_ISA
