// Prepared rows and products in vectors. Included by kernels_isa.cc only.
#pragma once

#include <algorithm>
#include <bit>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/linear/bf16_block.h"
#include "kernels/cpu/linear/float8_block.h"
#include "kernels/cpu/linear/packed_block.h"
#include "kernels/cpu/linear/tiled_block.h"
#include "kernels/packed_weight.h"

namespace turbomind::TM_ISA {

inline constexpr int kInterleavedRows = 8;

// Up to eight rows are adjacent, four inputs of each; the last rows may be missing. Rows for a weight that is not
// packed are consecutive.
inline RowsPlan rows_plan_in_vectors(const LinearWeight& weight, int rows) {
  RowsPlan plan;
  if (weight.is_tiled) return tiled_plan(weight, rows);
#if defined(__AVX512BF16__)
  if (rounds_to_pairs(weight)) {
    plan.kind = RowsPlan::Kind::kWide;
    plan.layout = lines_layout(weight.in_features, kBf16Line);
    return plan;
  }
#endif
  if (!weight.is_packed()) return plan;
  plan.kind = weight.format == WeightFormat::kFloat8 ? RowsPlan::Kind::kWide : RowsPlan::Kind::kQuantized;
  plan.layout.interleave = static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::min(rows, kInterleavedRows))));
  plan.layout.features = static_cast<size_t>(packed_shape(weight).padded_features());
  if (plan.kind == RowsPlan::Kind::kQuantized && rows > kPackedRows<8>) plan.block_tiles = kPackedTiles;
  // Rows of a block share widened codes and scales.
  if (packed_shape(weight).rest_bits() != 0 || weight.scale_groups > 1) plan.block_rows *= 2;
  return plan;
}

inline void convert_row_in_vectors(const float* x, int in_features, int row, const ConvertedRows& converted) {
  if (converted.layout.unit == kFloatLine) return copy_row(x, in_features, row, converted);
#if defined(__AVX512BF16__)
  if (converted.layout.unit == kBf16Line) return convert_row_to_bf16(x, in_features, row, converted);
#endif
  convert_row_to_quads(x, in_features, row, converted);
}

inline void converted_block_in_vectors(const LinearWeight& weight, const ConvertedRows& x, int first_row, int rows,
                                       int first_tile, int last_tile, float* y, bool accumulate) {
  if (weight.is_tiled) return tiled_block(weight, x, first_row, rows, first_tile, last_tile, y, accumulate);
#if defined(__AVX512BF16__)
  if (weight.format == WeightFormat::kBFloat16) {
    return bf16_block(weight, x, first_row, rows, first_tile, last_tile, y, accumulate);
  }
#endif
  float8_block(weight, x, first_row, rows, first_tile, last_tile, y, accumulate);
}

}  // namespace turbomind::TM_ISA
