// Products of rounded activations with weights of 4 to 8 bits on tiles. Included by kernels_isa.cc only.
//
// The order in which packed weights are stored (kernels/packed_weight.h) is that of a tile's rows: 16 outputs wide,
// four inputs in 32 bits. 8-bit codes are loaded as they are; shorter ones are widened once for all rows of a block,
// those of 4 bits less their zeros. Sums inside a group are exact integers and scales are added group by group, so
// results are bitwise those of packed_block.h.
#pragma once

#include <algorithm>

#include "base/aligned_buffer.h"
#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/linear/packed_block.h"

namespace turbomind::TM_ISA {

static_assert(kLanes == kTileOutputs, "a row of a tile's sums is one vector");

// Rows that share widened codes.
inline constexpr int kTileBlockRows = 128;

// Inputs that one product takes: as many as a tile holds, or half of that; 0 where groups are made of neither.
inline int tile_unit(int group) {
  return group % 64 == 0 ? 64 : group % 32 == 0 ? 32 : 0;
}

// The codes of a 4-bit tile as those of an 8-bit one, signed, less their zeros; with minima as they are.
inline void unpack_int4(const PackedTile& tile, const PackedShape& shape, int8_t* unpacked) {
  constexpr int kVector = 4 * kTileOutputs;
  const uint8_t* quantized = tile.quantized;
  for (int g = 0; g < shape.groups(); ++g) {
    uint8_t zeros[kVector];
    for (int i = 0; i < kVector; ++i) {
      const int common = tile.mins.halves == nullptr ? shape.zero_point() : 0;
      zeros[i] = tile.zeros == nullptr ? static_cast<uint8_t>(common) : tile.zeros[g * kTileOutputs + i / 4];
    }
    for (int k = 0; k < shape.group; k += 8, quantized += kVector, unpacked += 2 * kVector) {
      for (int i = 0; i < kVector; ++i) unpacked[i] = static_cast<int8_t>((quantized[i] & 0x0F) - zeros[i]);
      for (int i = 0; i < kVector; ++i) unpacked[kVector + i] = static_cast<int8_t>((quantized[i] >> 4) - zeros[i]);
    }
  }
}

// sum (code - zero) x = sum code x - zero sum x: what the sums over a group begin with.
inline IVec start_of_group(const PackedTile& tile, int group, int32_t offset) {
  const IVec start = broadcast_int(tile.mins.halves == nullptr ? offset : 0);
  return tile.zeros == nullptr ? start : multiply(start, upcast_bytes(tile.zeros + group * kTileOutputs));
}

// y of a tile for kRows rows from first_row on, some of which may be missing. `codes`: one byte each, those of a 4-bit
// weight widened.
template <int kRows, int kBits>
inline void packed_rows_on_tiles(const LinearWeight& weight, const PackedShape& shape, int tile_index,
                                 const PackedTile& tile, const void* quantized, const QuantizedRows& x, int first_row,
                                 float* y, bool accumulate) {
  const int unit = x.layout.unit;
  const auto unit_bytes = static_cast<size_t>(unit) * kTileOutputs;
  const int8_t* input = x.row(static_cast<size_t>(first_row));
  const auto* values = static_cast<const uint8_t*>(quantized);
  const size_t first_entry = x.entry(static_cast<size_t>(first_row));

  Vec sums[kRows][1];
  for (auto& sum : sums) sum[0] = zero();
  for (int g = 0; g < x.groups; ++g) {
    tile_zero<0>();
    for (int k = 0; k < shape.group; k += unit, values += unit_bytes, input += unit_bytes) {
      tile_load<1>(input, static_cast<size_t>(unit));
      tile_load<2>(values, kTileBytes);
      if constexpr (kBits == 8) {
        tile_dot_unsigned<0, 1, 2>();
      } else {
        tile_dot_signed<0, 1, 2>();
      }
    }
    alignas(64) int32_t products[kTileSide][kTileOutputs];
    tile_store<0>(products, kTileBytes);

    const size_t entry = first_entry + static_cast<size_t>(g) * kTileSide;
    const float* scales = x.scales + entry;
    const int32_t* offsets = x.offsets + entry;
    const Vec scale = tile.scales.halves == nullptr ? broadcast(1.0f) : tile.scales.at(g, 0);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      IVec product = load_bytes(reinterpret_cast<const uint8_t*>(products[r]));
      if (kBits == 8) product = add_ints(product, start_of_group(tile, g, offsets[r]));
      sums[r][0] = fma(to_floats(product), mul(scale, broadcast(scales[r])), sums[r][0]);
    }
    if (tile.mins.halves == nullptr) continue;
    const Vec min = tile.mins.at(g, 0);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      sums[r][0] = fma(min, broadcast(-scales[r] * static_cast<float>(offsets[r])), sums[r][0]);
    }
  }
  write_tile(weight, tile_index, 1.0f, sums, first_row, x.rows - first_row, y, accumulate);
}

template <int kBits>
inline void packed_block_on_tiles(const LinearWeight& weight, const QuantizedRows& x, int first_row, int rows,
                                  int first_tile, int last_tile, float* y, bool accumulate) {
  const PackedShape shape = packed_shape(weight);
  static thread_local AlignedBuffer unpacked;
  int8_t* const workspace =
      kBits < 8 ? unpacked.reserve<int8_t>(static_cast<size_t>(shape.padded_features()) * kTileOutputs) : nullptr;
  constexpr int kMultiplied = kBits == 4 ? 4 : 8;
  const int unit = x.layout.unit;
  const TileScope scope(
      TileShapes().set(0, kTileSide, kTileBytes).set(1, kTileSide, unit).set(2, unit / 4, kTileBytes));
  for (int index = first_tile; index < last_tile; ++index) {
    const PackedTile tile = packed_tiles(weight, shape, index, 1);
    if constexpr (kBits == 4) {
      unpack_int4(tile, shape, workspace);
    } else if constexpr (kBits < 8) {
      unpack_tiles<kBits>(tile.quantized, shape, 1, reinterpret_cast<uint8_t*>(workspace));
    }
    const void* quantized = kBits < 8 ? static_cast<const void*>(workspace) : tile.quantized;
    for (int row = first_row; row < first_row + rows; row += kTileSide) {
      if (first_row + rows - row > kTileSide / 2) {
        packed_rows_on_tiles<kTileSide, kMultiplied>(weight, shape, index, tile, quantized, x, row, y, accumulate);
      } else {
        packed_rows_on_tiles<kTileSide / 2, kMultiplied>(weight, shape, index, tile, quantized, x, row, y, accumulate);
      }
    }
  }
}

// Few rows are multiplied in vectors, to the same bits.
inline void packed_block_by_layout(const LinearWeight& weight, const QuantizedRows& x, int first_row, int rows,
                                   int first_tile, int last_tile, float* y, bool accumulate) {
  const auto multiply = x.layout.interleave != kTileSide       ? packed_block
                        : weight.format == WeightFormat::kInt4 ? packed_block_on_tiles<4>
                        : weight.format == WeightFormat::kInt5 ? packed_block_on_tiles<5>
                        : weight.format == WeightFormat::kInt6 ? packed_block_on_tiles<6>
                                                               : packed_block_on_tiles<8>;
  multiply(weight, x, first_row, rows, first_tile, last_tile, y, accumulate);
}

}  // namespace turbomind::TM_ISA
