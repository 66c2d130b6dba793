// The selective scan and the gated linear recurrent unit of some channels. Included by kernels_isa.cc only.
#pragma once

#include "kernels/cpu/recurrence/gate_rows.h"
#include "kernels/cpu/simd.h"
#include "kernels/recurrence.h"

namespace turbomind::TM_ISA {

// Channels [first, last) of a span's rows: the state of a vector of channels is in registers for as long as rows pass.
inline void scan(const SelectiveScan& op, const StateSpan& span, int first, int last) {
  const auto width = static_cast<size_t>(op.channels);
  for_vectors(last - first, [&](int, auto&& read, auto&& write) {
    float* state = reinterpret_cast<float*>(op.state.state(span.page)) + first;
    Vec h[kMaxScanKeyDim];
    Vec rates[kMaxScanKeyDim];
    for (int n = 0; n < op.key_dim; ++n) {
      h[n] = span.is_fresh != 0 ? zero() : read(state + n * width);
      rates[n] = read(op.rates + n * width + first);
    }
    const Vec skip = read(op.skip + first);
    for (int t = 0; t < span.count; ++t) {
      const auto row = static_cast<size_t>(span.first_token + t);
      const float* key = op.keys.row(row);
      const float* query = op.queries.row(row);
      const Vec step = softplus(read(op.steps + row * width + first));
      const Vec x = read(op.x + row * width + first);
      const Vec written = mul(step, x);
      Vec sum = mul(skip, x);
      for (int n = 0; n < op.key_dim; ++n) {
        h[n] = fma(exp(mul(rates[n], step)), h[n], mul(broadcast(key[n]), written));
        sum = fma(broadcast(query[n]), h[n], sum);
      }
      write(op.out + row * width + first, sum);
    }
    for (int n = 0; n < op.key_dim; ++n) write(state + n * width, h[n]);
  });
}

inline void gated_lru(const GatedLru& op, const StateSpan& span, int first, int last) {
  const auto width = static_cast<size_t>(op.channels);
  for_vectors(last - first, [&](int, auto&& read, auto&& write) {
    float* state = reinterpret_cast<float*>(op.state.state(span.page)) + first;
    Vec h = span.is_fresh != 0 ? zero() : read(state);
    const Vec rate = read(op.rates + first);
    for (int t = 0; t < span.count; ++t) {
      const size_t at = static_cast<size_t>(span.first_token + t) * width + first;
      const Vec input = sigmoid(add(read(op.inputs + at), read(op.biases + first)));
      const Vec decay = exp(mul(rate, sigmoid(add(read(op.decays + at), read(op.biases + width + first)))));
      Vec written = mul(input, read(op.x + at));
      if (span.is_fresh == 0 || t > 0) {
        written = mul(written, sqrt(fma(mul(decay, decay), broadcast(-1.0f), broadcast(1.0f))));
      }
      h = fma(decay, h, written);
      write(op.out + at, h);
    }
    write(state, h);
  });
}

}  // namespace turbomind::TM_ISA
