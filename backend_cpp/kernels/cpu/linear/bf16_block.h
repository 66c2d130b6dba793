// Products of rows with bfloat16 weights where the instruction set multiplies pairs of those. Included by
// kernels_isa.cc only.
#pragma once

#if defined(__AVX512BF16__)

#include <algorithm>

#include "kernels/cpu/linear/bf16_rows.h"
#include "kernels/cpu/linear/linear_block.h"
#include "kernels/packed_weight.h"

namespace turbomind::TM_ISA {

inline void convert_row_to_bf16(const float* x, int in_features, int row, const ConvertedRows& converted) {
  bf16* values = static_cast<bf16*>(converted.values) + converted.layout.offset(static_cast<size_t>(row));
  round_to_bf16(x, in_features, values);
  std::fill(values + in_features, values + converted.layout.features, bf16());
}

inline void bf16_block(const LinearWeight& weight, const ConvertedRows& x, int first_row, int rows, int first_tile,
                       int last_tile, float* y, bool accumulate) {
  const auto row = static_cast<size_t>(first_row);
  dot_block<PairDots>(weight, static_cast<const bf16*>(x.values) + x.layout.offset(row), x.layout.features, rows,
                      first_tile * kTileOutputs, std::min(last_tile * kTileOutputs, weight.out_features),
                      y + row * weight.out_features, accumulate);
}

}  // namespace turbomind::TM_ISA

#endif
