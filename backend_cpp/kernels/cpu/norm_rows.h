// Norms of one row. Included by kernels_isa.cc only.
#pragma once

#include <cmath>

#include "kernels/cpu/simd.h"
#include "kernels/norm.h"

namespace turbomind::TM_ISA {

// Sum of term(v) over the row, summed lane by lane; what is after the row counts as term(0).
template <class Term>
inline float sum_row(const float* x, int size, Term&& term) {
  Vec total = zero();
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) total = term(load(x + i), total);
  if (i < size) total = term(load_partial(x + i, size - i), total);
  return reduce_add(total);
}

inline void rms_norm_row(const NormWeight& norm, const float* x, int size, float* y) {
  const float squares = sum_row(x, size, [](Vec v, Vec total) { return fma(v, v, total); });
  const Vec factor = broadcast(1.0f / std::sqrt(squares / static_cast<float>(size) + norm.eps));
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) store(y + i, mul(mul(load(x + i), factor), load(norm.weight + i)));
  if (i < size) {
    const Vec v = mul(mul(load_partial(x + i, size - i), factor), load_partial(norm.weight + i, size - i));
    store_partial(y + i, v, size - i);
  }
}

inline void layer_norm_row(const NormWeight& norm, const float* x, int size, float* y) {
  const float mean = sum_row(x, size, [](Vec v, Vec total) { return add(v, total); }) / static_cast<float>(size);
  const Vec shift = broadcast(-mean);
  // Lanes after the row would add mean^2 each, so the rest is summed one by one.
  const int whole = size - size % kLanes;
  float squares = sum_row(x, whole, [&](Vec v, Vec total) { return fma(add(v, shift), add(v, shift), total); });
  for (int i = whole; i < size; ++i) squares += (x[i] - mean) * (x[i] - mean);
  const float factor = 1.0f / std::sqrt(squares / static_cast<float>(size) + norm.eps);
  for (int i = 0; i < size; ++i) {
    const float centred = (x[i] - mean) * factor * norm.weight[i];
    y[i] = norm.bias != nullptr ? centred + norm.bias[i] : centred;
  }
}

inline void norm_row(const NormWeight& norm, const float* x, int size, float* y) {
  norm.kind == NormKind::kRms ? rms_norm_row(norm, x, size, y) : layer_norm_row(norm, x, size, y);
}

}  // namespace turbomind::TM_ISA
