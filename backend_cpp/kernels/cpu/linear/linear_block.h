// Register-tiled dot products of rows of x with rows of w. Included by kernels_isa.cc only.
#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/cpu/simd.h"

namespace turbomind::TM_ISA {

// Rows of x by rows of w held in accumulators: 6 x 4 fills 32 registers with room for the operands; 2 x 4 fills 16.
inline constexpr int kTileRows = kRegisters == 32 ? 6 : 2;
inline constexpr int kTileColumns = 4;
// Bytes ahead in the weight stream that are asked for while one tile is computed.
inline constexpr int kPrefetchRows = 4;

template <int kRows, class W>
inline void dot_tile(const W* w, int columns, int k, const float* x, int ldx, float sums[kTileRows][kTileColumns],
                     bool prefetch) {
  Vec acc[kRows][kTileColumns];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kTileColumns; ++c) acc[r][c] = zero();
  }
  // Missing columns at the end of the weight repeat the last one; their sums are dropped by the caller.
  const W* rows[kTileColumns];
  for (int c = 0; c < kTileColumns; ++c) rows[c] = w + static_cast<size_t>(c < columns ? c : columns - 1) * k;

  int i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    Vec wv[kTileColumns];
    for (int c = 0; c < kTileColumns; ++c) {
      wv[c] = load(rows[c] + i);
      if (prefetch) __builtin_prefetch(rows[c] + i + static_cast<size_t>(kPrefetchRows) * k, 0, 2);
    }
    for (int r = 0; r < kRows; ++r) {
      const Vec xv = load(x + static_cast<size_t>(r) * ldx + i);
      for (int c = 0; c < kTileColumns; ++c) acc[r][c] = fma(xv, wv[c], acc[r][c]);
    }
  }
  if (i < k) {
    for (int r = 0; r < kRows; ++r) {
      const Vec xv = load_partial(x + static_cast<size_t>(r) * ldx + i, k - i);
      for (int c = 0; c < kTileColumns; ++c) acc[r][c] = fma(xv, load_partial(rows[c] + i, k - i), acc[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) reduce_add4(acc[r], sums[r]);
}

template <class W>
void linear_block_typed(const LinearWeight& weight, const float* x, int rows, int first, int last, float* y,
                        bool accumulate) {
  const int k = weight.in_features;
  const auto ldy = static_cast<size_t>(weight.out_features);
  float sums[kTileRows][kTileColumns];
  for (int n = first; n < last; n += kTileColumns) {
    const int columns = last - n < kTileColumns ? last - n : kTileColumns;
    const W* w = static_cast<const W*>(weight.data) + static_cast<size_t>(n) * k;
    for (int r = 0; r < rows;) {
      const float* xr = x + static_cast<size_t>(r) * k;
      const bool first_tile = r == 0;
      int done;
      if (rows - r >= kTileRows) {
        dot_tile<kTileRows>(w, columns, k, xr, k, sums, first_tile);
        done = kTileRows;
      } else if (kTileRows > 4 && rows - r >= 4) {
        dot_tile<4>(w, columns, k, xr, k, sums, first_tile);
        done = 4;
      } else if (rows - r >= 2) {
        dot_tile<2>(w, columns, k, xr, k, sums, first_tile);
        done = 2;
      } else {
        dot_tile<1>(w, columns, k, xr, k, sums, first_tile);
        done = 1;
      }
      for (int d = 0; d < done; ++d) {
        float* out = y + static_cast<size_t>(r + d) * ldy + n;
        for (int c = 0; c < columns; ++c) {
          const float value = sums[d][c] + (weight.bias != nullptr ? weight.bias[n + c] : 0.0f);
          out[c] = accumulate ? out[c] + value : value;
        }
      }
      r += done;
    }
  }
}

inline void linear_block(const LinearWeight& weight, const float* x, int rows, int first, int last, float* y,
                         bool accumulate) {
  if (weight.format == WeightFormat::kFloat32) {
    linear_block_typed<float>(weight, x, rows, first, last, y, accumulate);
  } else if (weight.format == WeightFormat::kFloat16) {
    linear_block_typed<half>(weight, x, rows, first, last, y, accumulate);
  } else {
    linear_block_typed<bf16>(weight, x, rows, first, last, y, accumulate);
  }
}

}  // namespace turbomind::TM_ISA
