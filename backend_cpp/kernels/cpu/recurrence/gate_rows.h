// Gates of recurrent mixers. Included by kernels_isa.cc only.
#pragma once

#include <algorithm>

#include "kernels/cpu/activation_rows.h"
#include "kernels/cpu/simd.h"
#include "kernels/recurrence.h"

namespace turbomind::TM_ISA {

// exp(-exp(a_log) step)
inline Vec decay_of(Vec a_log, Vec step) {
  return exp(mul(mul(exp(a_log), step), broadcast(-1.0f)));
}

// Calls body(i, read, write) for every vector of `size` elements; read and write take what is at i.
template <class Body>
inline void for_vectors(int size, Body&& body) {
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    body(i, [&](const float* p) { return load(p + i); }, [&](float* p, Vec v) { store(p + i, v); });
  }
  if (i < size) {
    const int rest = size - i;
    body(
        i, [&](const float* p) { return load_partial(p + i, rest); },
        [&](float* p, Vec v) { store_partial(p + i, v, rest); });
  }
}

// The decay of kDelta, of a + dt_bias.
inline Vec delta_decay(float bound, Vec a_log, Vec step) {
  if (bound == 0) return decay_of(a_log, softplus(step));
  return exp(mul(sigmoid(mul(exp(a_log), step)), broadcast(-bound)));
}

inline void recurrence_gate_row(const GateParams& params, const float* a, const float* b, float* decay, float* beta) {
  if (params.kind == RecurrenceGate::kMamba) {
    return for_vectors(params.heads, [&](int, auto&& read, auto&& write) {
      // The operand that is NaN stays.
      const Vec low = max(broadcast(params.dt_min), softplus(add(read(a), read(params.dt_bias))));
      const Vec step = min(broadcast(params.dt_max), low);
      write(decay, decay_of(read(params.a_log), step));
      write(beta, step);
    });
  }
  if (params.width == 1) {
    for_vectors(params.heads, [&](int, auto&& read, auto&& write) {
      write(decay, delta_decay(params.bound, read(params.a_log), add(read(a), read(params.dt_bias))));
    });
  } else {
    for (int h = 0; h < params.heads; ++h) {
      const size_t first = static_cast<size_t>(h) * params.width;
      const Vec a_log = broadcast(params.a_log[h]);
      for_vectors(params.width, [&](int, auto&& read, auto&& write) {
        write(decay + first, delta_decay(params.bound, a_log, add(read(a + first), read(params.dt_bias + first))));
      });
    }
  }
  if (b == nullptr) return;
  for_vectors(params.heads, [&](int, auto&& read, auto&& write) { write(beta, sigmoid(read(b))); });
}

}  // namespace turbomind::TM_ISA
