// y += scale s B^T of a part of an adapter. Included by kernels_isa.cc only.
#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/cpu/simd.h"

namespace turbomind::TM_ISA {

// Columns of B that are summed side by side, so that a sum need not wait for the one before it.
inline constexpr int kExpandVectors = 4;

template <class T>
inline Vec expanded(const T* up, size_t stride, int rank, const float* shrunk, int lanes) {
  Vec sum = zero();
  for (int k = 0; k < rank; ++k) {
    const T* row = up + static_cast<size_t>(k) * stride;
    sum = fma(broadcast(shrunk[k]), lanes == kLanes ? load(row) : load_partial(row, lanes), sum);
  }
  return sum;
}

template <class T>
void lora_expand_row(const LoraPart& part, const float* shrunk, int first, int last, float* y) {
  const auto* up = static_cast<const T*>(part.up);
  const auto stride = static_cast<size_t>(part.out_features);
  const Vec scale = broadcast(part.scale);
  int n = first;
  for (; n + kExpandVectors * kLanes <= last; n += kExpandVectors * kLanes) {
    Vec sums[kExpandVectors];
    for (int v = 0; v < kExpandVectors; ++v) sums[v] = zero();
    for (int k = 0; k < part.rank; ++k) {
      const Vec s = broadcast(shrunk[k]);
      const T* row = up + static_cast<size_t>(k) * stride + n;
      for (int v = 0; v < kExpandVectors; ++v) sums[v] = fma(s, load(row + v * kLanes), sums[v]);
    }
    for (int v = 0; v < kExpandVectors; ++v) {
      float* to = y + n + v * kLanes;
      store(to, fma(scale, sums[v], load(to)));
    }
  }
  for (; n + kLanes <= last; n += kLanes) {
    store(y + n, fma(scale, expanded(up + n, stride, part.rank, shrunk, kLanes), load(y + n)));
  }
  if (n < last) {
    const int lanes = last - n;
    const Vec sum = expanded(up + n, stride, part.rank, shrunk, lanes);
    store_partial(y + n, fma(scale, sum, load_partial(y + n, lanes)), lanes);
  }
}

inline void lora_expand_block(const LoraPart& part, WeightFormat format, const float* shrunk, int first, int last,
                              float* y) {
  if (format == WeightFormat::kFloat32) {
    lora_expand_row<float>(part, shrunk, first, last, y);
  } else if (format == WeightFormat::kFloat16) {
    lora_expand_row<half>(part, shrunk, first, last, y);
  } else {
    lora_expand_row<bf16>(part, shrunk, first, last, y);
  }
}

}  // namespace turbomind::TM_ISA
