// Products of rows with float8 weights on tiles of bfloat16. Included by kernels_isa.cc only.
//
// Codes are widened, exactly, to B [32 inputs, 16 outputs] once for all rows of a block; x is A [16 rows, 32 inputs].
#pragma once

#include <array>

#include "base/aligned_buffer.h"
#include "kernels/cpu/amx/bf16_rows.h"
#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/linear/float8_quads.h"
#include "kernels/cpu/linear/packed_tile.h"

namespace turbomind::TM_ISA {

// Whether a weight's groups are made of whole tiles; without their own scales, all groups are one.
inline bool is_float8_for_tiles(const LinearWeight& weight) {
  const int group = weight.block_scales != nullptr ? weight.group : packed_shape(weight).padded_features();
  return group % kTileDepth == 0;
}

// Four inputs of 16 outputs become two rows of B: the first two inputs, and the other two.
#if defined(__AVX512BF16__) && defined(__AVX512VBMI__)
inline void upcast_float8_quads(const uint8_t* quantized, bf16* rows) {
  Float8Quads quads;
  quads.load(quantized);
  const auto [outputs_01, outputs_23] = quads.upcast();
  const auto pairs = [&](auto lanes) {
    return _mm512_castps_si512(
        _mm512_shuffle_ps(_mm512_castsi512_ps(outputs_01), _mm512_castsi512_ps(outputs_23), lanes()));
  };
  _mm512_store_si512(rows, pairs(std::integral_constant<int, 0x88>()));
  _mm512_store_si512(rows + kTileDepth, pairs(std::integral_constant<int, 0xDD>()));
}
#else
inline constexpr std::array<uint16_t, 256> kFloat8AsBf16 = [] {
  std::array<uint16_t, 256> table{};
  for (unsigned value = 0; value < 256; ++value) {
    table[value] = static_cast<uint16_t>((value & 128u) << 8 | float8_as_bf16(value & 127u));
  }
  return table;
}();

inline void upcast_float8_quads(const uint8_t* quantized, bf16* rows) {
  for (int output = 0; output < kTileOutputs; ++output) {
    for (int i = 0; i < 4; ++i) {
      rows[i / 2 * kTileDepth + 2 * output + i % 2] = {kFloat8AsBf16[quantized[4 * output + i]]};
    }
  }
}
#endif

inline void float8_rows_on_tiles(const LinearWeight& weight, const PackedShape& shape, int tile_index,
                                 const bf16* weights, const ConvertedRows& x, int first_row, float* y,
                                 bool accumulate) {
  const bool has_scales = weight.block_scales != nullptr;
  const int groups = has_scales ? shape.groups() : 1;
  const int steps = (has_scales ? shape.group : shape.padded_features()) / kTileDepth;
  const auto* input = static_cast<const bf16*>(x.values) + x.layout.offset(static_cast<size_t>(first_row));
  constexpr size_t kTileElements = static_cast<size_t>(kTileSide) * kTileDepth;

  Vec sums[kTileSide][1];
  for (auto& sum : sums) sum[0] = zero();
  for (int g = 0; g < groups; ++g) {
    tile_zero<0>();
    for (int step = 0; step < steps; ++step, input += kTileElements, weights += kTileElements) {
      tile_load<1>(input, kTileBytes);
      tile_load<2>(weights, kTileBytes);
      tile_dot_bf16<0, 1, 2>();
    }
    alignas(64) float products[kTileSide][kTileSide];
    tile_store<0>(products, kTileBytes);
    const size_t entry = (static_cast<size_t>(tile_index) * shape.groups() + g) * kTileOutputs;
    const Vec scale = has_scales ? load(weight.block_scales + entry) : broadcast(1.0f);
    for (int r = 0; r < kTileSide; ++r) sums[r][0] = fma(load(products[r]), scale, sums[r][0]);
  }
  write_tile(weight, tile_index, 1.0f, sums, first_row, x.rows - first_row, y, accumulate);
}

inline void float8_block_on_tiles(const LinearWeight& weight, const ConvertedRows& x, int first_row, int rows,
                                  int first_tile, int last_tile, float* y, bool accumulate) {
  const PackedShape shape = packed_shape(weight);
  const size_t tile_bytes = shape.group_bytes() * shape.groups();
  static thread_local AlignedBuffer buffer;
  bf16* const workspace = buffer.reserve<bf16>(tile_bytes);

  const TileScope scope(
      TileShapes().set(0, kTileSide, kTileBytes).set(1, kTileSide, kTileBytes).set(2, kTileSide, kTileBytes));
  for (int index = first_tile; index < last_tile; ++index) {
    const uint8_t* quantized = static_cast<const uint8_t*>(weight.data) + index * tile_bytes;
    for (size_t i = 0; i < tile_bytes; i += 4 * kTileOutputs) upcast_float8_quads(quantized + i, workspace + i);
    for (int row = first_row; row < first_row + rows; row += kTileSide) {
      float8_rows_on_tiles(weight, shape, index, workspace, x, row, y, accumulate);
    }
  }
}

}  // namespace turbomind::TM_ISA
