// Products of rows with tiled bfloat16 weights on matrix tiles. Included by kernels_isa.cc only.
//
// Rows are A [16 rows, 32 inputs], a tile of the weight is B [32 inputs, 16 outputs]. An output is summed in one tile
// in steps of 32 inputs, whatever the rows.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/cpu/amx/bf16_rows.h"
#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/linear/packed_tile.h"

namespace turbomind::TM_ISA {

// Calls visit(std::integral_constant) for 0 to kCount - 1.
template <int kCount, class Visit>
inline void for_constants(Visit&& visit) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) {
    (visit(std::integral_constant<int, kIndex>()), ...);
  }(std::make_integer_sequence<int, kCount>());
}

// Loads inputs [k, k + 32) of a tile of the weight; those that it does not have are 0.
template <int kTile>
inline void load_weight_tile(const LinearWeight& weight, int tile, int k) {
  const int pairs = (weight.in_features + 1) / 2;
  constexpr int kPairs = 2 * kTileSide;  // numbers of a pair of inputs
  const bf16* source = static_cast<const bf16*>(weight.data) + (static_cast<size_t>(tile) * pairs + k / 2) * kPairs;
  const int left = pairs - k / 2;
  if (left >= kTileSide) {
    tile_load<kTile>(source, kTileBytes);
    return;
  }
  alignas(64) bf16 padded[kTileSide * kPairs] = {};
  std::copy_n(source, left * kPairs, padded);
  tile_load<kTile>(padded, kTileBytes);
}

// kOuts tiles of outputs by kBlocks tiles of 16 rows of x: at most four of sums. Weights and rows take the other four.
template <int kOuts, int kBlocks>
inline void bf16_rows_on_tiles(const LinearWeight& weight, int first_tile, const ConvertedRows& x, int first_row,
                               float* y, bool accumulate) {
  static_assert(kOuts * kBlocks <= 4 && kBlocks <= 2);
  const bf16* blocks[kBlocks];
  for (int b = 0; b < kBlocks; ++b) {
    blocks[b] = static_cast<const bf16*>(x.values) + x.layout.offset(static_cast<size_t>(first_row + b * kTileSide));
  }
  for_constants<kOuts * kBlocks>([](auto sum) { tile_zero<sum()>(); });
  for (int k = 0; k < weight.in_features; k += kTileDepth) {
    const size_t offset = static_cast<size_t>(k) * kTileSide;
    for_constants<kBlocks>([&](auto block) { tile_load<6 + block()>(blocks[block()] + offset, kTileBytes); });
    for_constants<kOuts>([&](auto out) {
      constexpr int kWeights = 4 + decltype(out)::value % 2;
      load_weight_tile<kWeights>(weight, first_tile + out(), k);
      for_constants<kBlocks>([&](auto block) { tile_dot_bf16<out() * kBlocks + block(), 6 + block(), kWeights>(); });
    });
  }
  for_constants<kOuts * kBlocks>([&](auto sum) {
    alignas(64) float products[kTileSide][kTileSide];
    tile_store<sum()>(products, kTileBytes);
    Vec sums[kTileSide][1];
    for (int i = 0; i < kTileSide; ++i) sums[i][0] = load(products[i]);
    const int row = first_row + sum() % kBlocks * kTileSide;
    write_tile(weight, first_tile + sum() / kBlocks, 1.0f, sums, row, x.rows - row, y, accumulate);
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
