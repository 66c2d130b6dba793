// Register-tiled dot products of rows of x with rows of w. Included by kernels_isa.cc only.
#pragma once

#include <algorithm>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/simd.h"

namespace turbomind::TM_ISA {

// Rows of x by rows of w held in accumulators: 6 x 4 fills 32 registers with room for the operands; 2 x 4 fills 16.
inline constexpr int kTileRows = kRegisters == 32 ? 6 : 2;
inline constexpr int kTileColumns = 4;
// Rows ahead in the weight that are prefetched while one tile is computed.
inline constexpr int kPrefetchRows = 4;
// Rows of at most this many bytes are prefetched in the order of memory, longer ones side by side. That is 1.1 to 1.3
// and 1.0 to 1.15 times the bandwidth of the other order (bfloat16, one row of x, 576 to 2,048 inputs, Zen 3).
inline constexpr size_t kShortRow = 2048;
inline constexpr size_t kPrefetchLine = 64;

// Products of float32 rows with a weight of W, which is widened.
template <class W>
struct FloatDots {
  using Weight = W;
  using Input = float;
  static constexpr int kInputs = kLanes;  // that a vector holds

  template <class T>
  static Vec load(const T* p) {
    return TM_ISA::load(p);
  }
  template <class T>
  static Vec load_partial(const T* p, int count) {
    return TM_ISA::load_partial(p, count);
  }
  static Vec add(Vec sum, Vec x, Vec w) { return fma(x, w, sum); }
};

#if defined(__AVX512BF16__)
// Products of bfloat16 rows with a weight of bfloat16, pair by pair.
struct PairDots {
  using Weight = bf16;
  using Input = bf16;
  static constexpr int kInputs = 2 * kLanes;

  static IVec load(const bf16* p) { return load_bytes(reinterpret_cast<const uint8_t*>(p)); }
  static IVec load_partial(const bf16* p, int count) {
    bf16 inputs[kInputs] = {};
    std::copy_n(p, count, inputs);
    return load(inputs);
  }
  static Vec add(Vec sum, IVec x, IVec w) { return dot2(sum, x, w); }
};
#endif

template <int kRows, class Products>
inline void dot_tile(const typename Products::Weight* w, int columns, int k, const typename Products::Input* x,
                     size_t ldx, float sums[kTileRows][kTileColumns], bool prefetch) {
  Vec acc[kRows][kTileColumns];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kTileColumns; ++c) acc[r][c] = zero();
  }
  // Missing columns at the end of the weight repeat the last one; their sums are dropped by the caller.
  const typename Products::Weight* rows[kTileColumns];
  for (int c = 0; c < kTileColumns; ++c) rows[c] = w + static_cast<size_t>(c < columns ? c : columns - 1) * k;

  // Adds the products of the inputs that `load` loads from where they begin.
  const auto add_inputs = [&](int i, auto&& load) {
    decltype(Products::load(w)) wv[kTileColumns];
    for (int c = 0; c < kTileColumns; ++c) wv[c] = load(rows[c] + i);
    for (int r = 0; r < kRows; ++r) {
      const auto xv = load(x + r * ldx + i);
      for (int c = 0; c < kTileColumns; ++c) acc[r][c] = Products::add(acc[r][c], xv, wv[c]);
    }
  };
  const size_t row_bytes = static_cast<size_t>(k) * sizeof(*w);
  const bool is_short = row_bytes <= kShortRow;
  const char* ahead = reinterpret_cast<const char*>(w) + kPrefetchRows * row_bytes;
  constexpr size_t kPassBytes = kTileColumns * Products::kInputs * sizeof(*w);  // of weights, for one vector a row
  int i = 0;
  for (; i + Products::kInputs <= k; i += Products::kInputs) {
    if (prefetch && is_short) {
      for (size_t line = 0; line < kPassBytes; line += kPrefetchLine) __builtin_prefetch(ahead + line, 0, 2);
      ahead += kPassBytes;
    } else if (prefetch) {
      for (const auto* row : rows) __builtin_prefetch(row + i + static_cast<size_t>(kPrefetchRows) * k, 0, 2);
    }
    add_inputs(i, [](const auto* p) { return Products::load(p); });
  }
  if (i < k) {
    add_inputs(i, [&](const auto* p) { return Products::load_partial(p, k - i); });
  }
  for (int r = 0; r < kRows; ++r) reduce_add4(acc[r], sums[r]);
}

inline void add_outputs(const float* sums, const float* bias, int columns, bool accumulate, float* out) {
  for (int c = 0; c < columns; ++c) {
    const float value = sums[c] + bias[c];
    out[c] = accumulate ? out[c] + value : value;
  }
}

// y[r, n] for rows of x that begin `ldx` elements apart, and outputs [first, last).
template <class Products>
void dot_block(const LinearWeight& weight, const typename Products::Input* x, size_t ldx, int rows, int first, int last,
               float* y, bool accumulate) {
  const int k = weight.in_features;
  const auto ldy = static_cast<size_t>(weight.out_features);
  float sums[kTileRows][kTileColumns];
  for (int n = first; n < last; n += kTileColumns) {
    const int columns = last - n < kTileColumns ? last - n : kTileColumns;
    const auto* w = static_cast<const typename Products::Weight*>(weight.data) + static_cast<size_t>(n) * k;
    float bias[kTileColumns] = {};
    if (weight.bias != nullptr) std::copy_n(weight.bias + n, columns, bias);
    for (int r = 0; r < rows;) {
      const auto* xr = x + r * ldx;
      const bool first_tile = r == 0;
      int done;
      if (rows - r >= kTileRows) {
        dot_tile<kTileRows, Products>(w, columns, k, xr, ldx, sums, first_tile);
        done = kTileRows;
      } else if (kTileRows > 4 && rows - r >= 4) {
        dot_tile<4, Products>(w, columns, k, xr, ldx, sums, first_tile);
        done = 4;
      } else if (rows - r >= 2) {
        dot_tile<2, Products>(w, columns, k, xr, ldx, sums, first_tile);
        done = 2;
      } else {
        dot_tile<1, Products>(w, columns, k, xr, ldx, sums, first_tile);
        done = 1;
      }
      for (int d = 0; d < done; ++d) {
        float* out = y + static_cast<size_t>(r + d) * ldy + n;
        if (columns == kTileColumns) {
          add_outputs(sums[d], bias, kTileColumns, accumulate, out);
        } else {
          add_outputs(sums[d], bias, columns, accumulate, out);
        }
      }
      r += done;
    }
  }
}

inline void linear_block(const LinearWeight& weight, const float* x, int rows, int first, int last, float* y,
                         bool accumulate) {
  const auto ldx = static_cast<size_t>(weight.in_features);
  if (weight.format == WeightFormat::kFloat32) {
    dot_block<FloatDots<float>>(weight, x, ldx, rows, first, last, y, accumulate);
  } else if (weight.format == WeightFormat::kFloat16) {
    dot_block<FloatDots<half>>(weight, x, ldx, rows, first, last, y, accumulate);
  } else {
    dot_block<FloatDots<bf16>>(weight, x, ldx, rows, first, last, y, accumulate);
  }
}

}  // namespace turbomind::TM_ISA
