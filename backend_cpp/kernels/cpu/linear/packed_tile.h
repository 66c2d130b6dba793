// Common parts of products with packed weights: which rows a tile is multiplied with at once, how its sums become y.
// Included by kernels_isa.cc only.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/simd.h"
#include "kernels/packed_weight.h"

namespace turbomind::TM_ISA {

inline constexpr int kTileVecs = kTileOutputs / kLanes;  // vectors that hold one value for each output of a tile

// Calls multiply(count, tile, first row), count a std::integral_constant, until each tile has met each row; the first
// row is a multiple of count, so that these rows are adjacent. There may be fewer rows than that at the end: to decode
// a tile's codes once more costs more than to multiply them with rows that nobody needs.
template <int kMaxRows, class Multiply>
inline void for_row_groups(int first_row, int rows, int first_tile, int last_tile, Multiply&& multiply) {
  const int end = first_row + rows;
  for (int tile = first_tile; tile < last_tile; ++tile) {
    for (int row = first_row; row < end; row += kMaxRows) {
      const int left = end - row;
      if (kMaxRows > 4 && left > 4) {
        multiply(std::integral_constant<int, kMaxRows>(), tile, row);
      } else if (kMaxRows > 2 && left > 2) {
        multiply(std::integral_constant<int, std::min(kMaxRows, 4)>(), tile, row);
      } else if (kMaxRows > 1 && left > 1) {
        multiply(std::integral_constant<int, std::min(kMaxRows, 2)>(), tile, row);
      } else {
        multiply(std::integral_constant<int, 1>(), tile, row);
      }
    }
  }
}

// y of `rows` rows from first_row on, at most kRows, and a tile: sums times the outputs' scales and `factor`, plus
// bias.
template <int kRows>
inline void write_tile(const LinearWeight& weight, int tile_index, float factor, const Vec (&sums)[kRows][kTileVecs],
                       int first_row, int rows, float* y, bool accumulate) {
  const int first_output = tile_index * kTileOutputs;
  const int count = std::min(kTileOutputs, weight.out_features - first_output);
  float bias[kTileOutputs] = {};
  if (weight.bias != nullptr) std::copy_n(weight.bias + first_output, count, bias);
  Vec scales[kTileVecs];
  for (int v = 0; v < kTileVecs; ++v) {
    scales[v] = broadcast(factor);
    if (weight.output_scales == nullptr) continue;
    scales[v] = mul(scales[v], load(weight.output_scales + first_output + v * kLanes));
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) break;
    float* out = y + static_cast<size_t>(first_row + r) * weight.out_features + first_output;
    for (int v = 0; v < kTileVecs; ++v) {
      const int lanes = std::min(kLanes, count - v * kLanes);
      if (lanes <= 0) break;
      float* target = out + v * kLanes;
      const Vec value = fma(sums[r][v], scales[v], load(bias + v * kLanes));
      if (lanes == kLanes) {
        store(target, accumulate ? add(load(target), value) : value);
      } else {
        store_partial(target, accumulate ? add(load_partial(target, lanes), value) : value, lanes);
      }
    }
  }
}

}  // namespace turbomind::TM_ISA
