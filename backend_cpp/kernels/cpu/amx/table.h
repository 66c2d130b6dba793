// Dispatch of linear layers to AMX tiles or vectors. Included by kernels_isa.cc only.
#pragma once

#include "kernels/cpu/amx/bf16_on_tiles.h"
#include "kernels/cpu/amx/float8_on_tiles.h"
#include "kernels/cpu/amx/packed_on_tiles.h"
#include "kernels/cpu/linear/in_vectors.h"

namespace turbomind::TM_ISA {

// Up to this many rows of rounded activations cost less in vectors: the weight's bytes decide there.
inline constexpr int kRowsInVectors = 8;

inline RowsPlan rows_plan_on_tiles(const LinearWeight& weight, int rows) {
  RowsPlan plan = rows_plan_in_vectors(weight, rows);
  const auto use_tiles = [&](int unit) {
    plan.layout.interleave = kTileSide;
    plan.layout.unit = unit;
    plan.block_rows = kTileBlockRows;
  };
  switch (weight.format) {
    case WeightFormat::kInt8:
    case WeightFormat::kInt6:
    case WeightFormat::kInt5:
    case WeightFormat::kInt4:
      if (rows > kRowsInVectors && tile_unit(weight.group) != 0) use_tiles(tile_unit(weight.group));
      break;
    case WeightFormat::kFloat8:
      if (is_float8_for_tiles(weight)) use_tiles(kTileDepth);
      break;
    case WeightFormat::kBFloat16:
      if (!weight.is_tiled) break;
      use_tiles(kTileDepth);
      plan.block_tiles = 4;
      plan.kind = RowsPlan::Kind::kWide;
      plan.layout.features = static_cast<size_t>((weight.in_features + kTileDepth - 1) / kTileDepth) * kTileDepth;
      break;
    case WeightFormat::kFloat16:
    case WeightFormat::kFloat32:
      break;
  }
  return plan;
}

inline void convert_row_by_layout(const float* x, int in_features, int row, const ConvertedRows& converted) {
  if (converted.layout.interleave == kTileSide) {
    convert_row_for_tiles(x, in_features, row, converted);
  } else {
    convert_row_in_vectors(x, in_features, row, converted);
  }
}

inline void converted_block_by_format(const LinearWeight& weight, const ConvertedRows& x, int first_row, int rows,
                                      int first_tile, int last_tile, float* y, bool accumulate) {
  if (weight.format == WeightFormat::kBFloat16 && weight.is_tiled) {
    bf16_block_on_tiles(weight, x, first_row, rows, first_tile, last_tile, y, accumulate);
  } else if (x.layout.interleave == kTileSide) {
    float8_block_on_tiles(weight, x, first_row, rows, first_tile, last_tile, y, accumulate);
  } else {
    converted_block_in_vectors(weight, x, first_row, rows, first_tile, last_tile, y, accumulate);
  }
}

}  // namespace turbomind::TM_ISA
