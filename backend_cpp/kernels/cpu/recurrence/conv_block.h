// The causal convolution of some channels. Included by kernels_isa.cc only.
#pragma once

#include <algorithm>
#include <utility>

#include "kernels/cpu/activation_rows.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/simd.h"
#include "kernels/recurrence.h"

namespace turbomind::TM_ISA {

// Channels [first, last), at most kConvBlock of them, of all spans. Rows are far apart, so a few rows of all these
// channels are computed before the next few.
template <int kKernel>
inline void conv_rows(const ConvParams& params, int first, int last, const StridedRows& x, const StridedRows& y) {
  constexpr int kTile = 4;  // rows
  const int channels = last - first;
  const int vectors = (channels + kLanes - 1) / kLanes;
  const auto read = [&](const float* row, int vector) {
    const int rest = channels - vector * kLanes;
    const float* p = row + first + vector * kLanes;
    return rest >= kLanes ? load(p) : load_partial(p, rest);
  };
  const auto write = [&](float* row, int vector, Vec values) {
    const int rest = channels - vector * kLanes;
    float* p = row + first + vector * kLanes;
    rest >= kLanes ? store(p, values) : store_partial(p, values, rest);
  };

  float taps[kKernel][kConvBlock] = {};
  for (int c = 0; c < channels; ++c) {
    for (int j = 0; j < kKernel; ++j) taps[j][c] = params.weight[static_cast<size_t>(first + c) * kKernel + j];
  }

  for (int s = 0; s < params.state.span_count; ++s) {
    const StateSpan& span = params.state.spans[s];
    if (span.count == 0) continue;
    const auto state = [&](const StateSpan& of, int j) {
      return reinterpret_cast<float*>(params.state.state(of.page)) +
             static_cast<size_t>(j) * static_cast<size_t>(params.channels);
    };
    if (s + 1 < params.state.span_count) {
      const StateSpan& next = params.state.spans[s + 1];
      for (int j = 0; j + 1 < kKernel; ++j) prefetch(state(next, j) + first, channels);
      prefetch(x.row(static_cast<size_t>(next.first_token)) + first, channels);
    }
    for (int tile = 0; tile < span.count; tile += kTile) {
      const int rows = std::min(kTile, span.count - tile);
      const bool is_fresh = span.is_fresh != 0 && tile == 0;
      for (int i = 0; i < vectors; ++i) {
        const Vec bias = params.bias != nullptr ? read(params.bias, i) : zero();
        Vec window[kKernel];  // the last inputs, oldest first
        for (int j = 0; j + 1 < kKernel; ++j) window[j] = is_fresh ? zero() : read(state(span, j), i);
        for (int r = 0; r < rows; ++r) {
          const auto row = static_cast<size_t>(span.first_token + tile + r);
          window[kKernel - 1] = read(x.row(row), i);
          Vec sum = bias;
          for (int j = 0; j < kKernel; ++j) sum = fma(load(taps[j] + i * kLanes), window[j], sum);
          write(y.row(row), i, params.has_silu ? silu(sum) : sum);
          for (int j = 0; j + 1 < kKernel; ++j) window[j] = window[j + 1];
        }
        for (int j = 0; j + 1 < kKernel; ++j) write(state(span, j), i, window[j]);
      }
    }
  }
}

template <int... kBefore>
inline auto conv_rows_of(int kernel, std::integer_sequence<int, kBefore...>) {
  auto* chosen = conv_rows<1>;
  ((kernel == kBefore + 1 ? void(chosen = conv_rows<kBefore + 1>) : void()), ...);
  return chosen;
}

inline void conv_block(const ConvParams& params, int first, int last, const StridedRows& x, const StridedRows& y) {
  conv_rows_of(params.kernel, std::make_integer_sequence<int, kMaxConvKernel>{})(params, first, last, x, y);
}

}  // namespace turbomind::TM_ISA
