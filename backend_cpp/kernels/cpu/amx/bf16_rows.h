// Rows rounded to bfloat16 in the order in which tiles take them. Included by kernels_isa.cc only.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/linear/bf16_rows.h"

namespace turbomind::TM_ISA {

// Inputs that one product of bfloat16 takes.
inline constexpr int kTileDepth = kTileBytes / static_cast<int>(sizeof(bf16));

// A row of A [16 rows, 32 inputs]. Inputs beyond in_features are 0.
inline void convert_row_for_tiles(const float* x, int in_features, int row, const ConvertedRows& converted) {
  const RowsLayout& layout = converted.layout;
  auto* target = static_cast<bf16*>(converted.values) + layout.offset(static_cast<size_t>(row));
  const size_t step = static_cast<size_t>(layout.interleave) * layout.unit;
  for (int k = 0; k < static_cast<int>(layout.features); k += kTileDepth) {
    bf16 rounded[kTileDepth] = {};
    round_to_bf16(x + k, std::clamp(in_features - k, 0, kTileDepth), rounded);
    std::memcpy(target, rounded, sizeof(rounded));
    target += step;
  }
}

}  // namespace turbomind::TM_ISA
