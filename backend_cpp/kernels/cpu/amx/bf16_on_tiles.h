// Products of rows with bfloat16 weights on tiles. Included by kernels_isa.cc only.
//
// A weight's rows are loaded as they are, as A [16 outputs, 32 inputs]; x is B. So sums come as [outputs, rows] and are
// transposed once, after all inputs. An output is summed in one tile in steps of 32 inputs, whatever the rows.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/cpu/amx/bf16_rows.h"
#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/linear/packed_tile.h"
#include "kernels/cpu/linear/transpose.h"

namespace turbomind::TM_ISA {

// Calls visit(std::integral_constant) for 0 to kCount - 1.
template <int kCount, class Visit>
inline void for_constants(Visit&& visit) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) {
    (visit(std::integral_constant<int, kIndex>()), ...);
  }(std::make_integer_sequence<int, kCount>());
}

// Loads outputs [first, first + 16) and inputs [k, k + 32); those that the weight does not have are 0.
template <int kTile>
inline void load_weight_tile(const LinearWeight& weight, int first, int k) {
  const auto stride = static_cast<size_t>(weight.in_features);
  const bf16* source = static_cast<const bf16*>(weight.data) + first * stride + k;
  const int outputs = weight.out_features - first;
  const int inputs = weight.in_features - k;
  if (outputs >= kTileSide && inputs >= kTileDepth) {
    tile_load<kTile>(source, stride * sizeof(bf16));
    return;
  }
  alignas(64) bf16 padded[kTileSide][kTileDepth] = {};
  for (int o = 0; o < std::min(outputs, kTileSide); ++o) {
    std::copy_n(source + o * stride, std::min(inputs, kTileDepth), padded[o]);
  }
  tile_load<kTile>(padded, kTileBytes);
}

// kOuts tiles of outputs by kColumns tiles of 16 rows of x: at most four of sums. Weights and rows take the other four.
template <int kOuts, int kColumns>
inline void bf16_rows_on_tiles(const LinearWeight& weight, int first_tile, const ConvertedRows& x, int first_row,
                               float* y, bool accumulate) {
  static_assert(kOuts * kColumns <= 4 && kColumns <= 2);
  const bf16* columns[kColumns];
  for (int c = 0; c < kColumns; ++c) {
    columns[c] = static_cast<const bf16*>(x.values) + x.layout.offset(static_cast<size_t>(first_row + c * kTileSide));
  }
  for_constants<kOuts * kColumns>([](auto sum) { tile_zero<sum()>(); });
  for (int k = 0; k < weight.in_features; k += kTileDepth) {
    const size_t offset = static_cast<size_t>(k) * kTileSide;
    for_constants<kColumns>([&](auto column) { tile_load<6 + column()>(columns[column()] + offset, kTileBytes); });
    for_constants<kOuts>([&](auto out) {
      constexpr int kWeights = 4 + decltype(out)::value % 2;
      load_weight_tile<kWeights>(weight, (first_tile + out()) * kTileSide, k);
      for_constants<kColumns>(
          [&](auto column) { tile_dot_bf16<out() * kColumns + column(), kWeights, 6 + column()>(); });
    });
  }
  for_constants<kOuts * kColumns>([&](auto sum) {
    alignas(64) float products[kTileSide][kTileSide];
    tile_store<sum()>(products, kTileBytes);
    Vec rows[kTileSide];
    for (int i = 0; i < kTileSide; ++i) rows[i] = load(products[i]);
    transpose(rows);
    Vec sums[kTileSide][1];
    for (int i = 0; i < kTileSide; ++i) sums[i][0] = rows[i];
    const int row = first_row + sum() % kColumns * kTileSide;
    write_tile(weight, first_tile + sum() / kColumns, 1.0f, sums, row, x.rows - row, y, accumulate);
  });
}

inline void bf16_block_on_tiles(const LinearWeight& weight, const ConvertedRows& x, int first_row, int rows,
                                int first_tile, int last_tile, float* y, bool accumulate) {
  TileShapes shapes;
  for (int tile = 0; tile < kTileCount; ++tile) shapes.set(tile, kTileSide, kTileBytes);
  const TileScope scope(shapes);
  const int end = first_row + rows;
  int tile = first_tile;
  if (rows <= kTileSide) {
    for (; tile + 4 <= last_tile; tile += 4) bf16_rows_on_tiles<4, 1>(weight, tile, x, first_row, y, accumulate);
  }
  for (; tile + 2 <= last_tile; tile += 2) {
    for (int row = first_row; row < end; row += 2 * kTileSide) {
      if (end - row > kTileSide) {
        bf16_rows_on_tiles<2, 2>(weight, tile, x, row, y, accumulate);
      } else {
        bf16_rows_on_tiles<2, 1>(weight, tile, x, row, y, accumulate);
      }
    }
  }
  if (tile < last_tile) {
    for (int row = first_row; row < end; row += kTileSide) {
      bf16_rows_on_tiles<1, 1>(weight, tile, x, row, y, accumulate);
    }
  }
}

}  // namespace turbomind::TM_ISA
