// Activations of one row. Included by kernels_isa.cc only.
#pragma once

#include "kernels/activation.h"
#include "kernels/cpu/simd.h"

namespace turbomind::TM_ISA {

// v / (1 + exp(-slope v))
inline Vec sigmoid_linear(Vec v, Vec slope) {
  return div(v, add(broadcast(1.0f), exp(mul(mul(v, slope), broadcast(-1.0f)))));
}

inline Vec silu(Vec v) {
  return div(v, add(broadcast(1.0f), exp(mul(v, broadcast(-1.0f)))));
}

inline Vec sigmoid(Vec v) {
  return div(broadcast(1.0f), add(broadcast(1.0f), exp(mul(v, broadcast(-1.0f)))));
}

// log(1 + e^v) = max(v, 0) + log(1 + y) with y = e^-|v|, within 4 ulp where that is a normal number; log(1 + y) = 2
// atanh z with z = y / (2 + y) <= 1/3, by its series up to z^15.
inline Vec softplus(Vec v) {
  const Vec y = exp(mul(absolute(v), broadcast(-1.0f)));
  const Vec z = div(y, add(y, broadcast(2.0f)));
  const Vec square = mul(z, z);
  Vec p = broadcast(2.0f / 15);
  for (int n = 13; n >= 1; n -= 2) p = fma(p, square, broadcast(2.0f / static_cast<float>(n)));
  return fma(p, z, max(zero(), v));
}

inline Vec gelu_tanh(Vec v) {
  const Vec cubic = fma(mul(v, v), broadcast(0.044715f), broadcast(1.0f));
  return sigmoid_linear(v, mul(cubic, broadcast(1.5957691216f)));  // 2 sqrt(2 / pi)
}

// max(v, 0) - |v| erfc(|v| / sqrt 2) / 2, so that the tail keeps its precision; erfc as in Abramowitz & Stegun, 7.1.26.
inline Vec gelu(Vec v) {
  const Vec negated = mul(v, broadcast(-1.0f));
  const Vec magnitude = max(v, negated);
  const Vec z = mul(magnitude, broadcast(0.70710678f));
  const Vec t = div(broadcast(1.0f), fma(z, broadcast(0.3275911f), broadcast(1.0f)));
  Vec p = broadcast(1.061405429f);
  p = fma(p, t, broadcast(-1.453152027f));
  p = fma(p, t, broadcast(1.421413741f));
  p = fma(p, t, broadcast(-0.284496736f));
  p = fma(p, t, broadcast(0.254829592f));
  const Vec tail = mul(mul(p, t), exp(mul(mul(z, z), broadcast(-1.0f))));
  return fma(mul(magnitude, tail), broadcast(-0.5f), max(v, zero()));
}

// The second operand of max and min is the one whose NaN stays.
inline Vec clamped_swiglu(Vec gate, Vec up) {
  constexpr float kLimit = 7.0f;
  constexpr float kSlope = 1.702f;
  const Vec low = min(broadcast(kLimit), gate);
  const Vec bounded = max(broadcast(-kLimit), min(broadcast(kLimit), up));
  return mul(sigmoid_linear(low, broadcast(kSlope)), add(bounded, broadcast(1.0f)));
}

inline Vec clamped_silu(Vec gate, Vec up, float limit) {
  return mul(silu(min(broadcast(limit), gate)), max(broadcast(-limit), min(broadcast(limit), up)));
}

inline Vec bounded_silu(Vec gate, Vec up, float limit) {
  const Vec bounded = max(broadcast(-limit), min(broadcast(limit), up));
  return mul(min(broadcast(limit), silu(gate)), bounded);
}

template <class Operation>
inline void map_row(const float* gate, const float* up, int size, float* y, Operation&& operation) {
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    store(y + i, operation(load(gate + i), up != nullptr ? load(up + i) : broadcast(1.0f)));
  }
  if (i < size) {
    const int rest = size - i;
    const Vec factor = up != nullptr ? load_partial(up + i, rest) : broadcast(1.0f);
    store_partial(y + i, operation(load_partial(gate + i, rest), factor), rest);
  }
}

inline void activate_row(Activation activation, const float* gate, const float* up, int size, float* y) {
  switch (activation) {
    case Activation::kSilu:
      return map_row(gate, up, size, y, [](Vec g, Vec u) { return mul(silu(g), u); });
    case Activation::kGelu:
      return map_row(gate, up, size, y, [](Vec g, Vec u) { return mul(gelu(g), u); });
    case Activation::kGeluTanh:
      return map_row(gate, up, size, y, [](Vec g, Vec u) { return mul(gelu_tanh(g), u); });
    case Activation::kRelu:
      return map_row(gate, up, size, y, [](Vec g, Vec u) { return mul(max(zero(), g), u); });
    case Activation::kRelu2:
      return map_row(gate, up, size, y, [](Vec g, Vec u) { return mul(mul(max(zero(), g), max(zero(), g)), u); });
    case Activation::kClampedSwiglu:
      return map_row(gate, up, size, y, [](Vec g, Vec u) { return clamped_swiglu(g, u); });
    case Activation::kSilu7:
      return map_row(gate, up, size, y, [](Vec g, Vec u) { return bounded_silu(g, u, 7.0f); });
    case Activation::kSilu16:
      return map_row(gate, up, size, y, [](Vec g, Vec u) { return bounded_silu(g, u, 16.0f); });
    case Activation::kClampedSilu10:
      return map_row(gate, up, size, y, [](Vec g, Vec u) { return clamped_silu(g, u, 10.0f); });
    case Activation::kSigmoid:
      return map_row(gate, up, size, y, [](Vec g, Vec u) { return mul(sigmoid(g), u); });
    case Activation::kSoftplus:
      return map_row(gate, up, size, y, [](Vec g, Vec u) { return mul(softplus(g), u); });
    case Activation::kLinear:
      return map_row(gate, up, size, y, [](Vec g, Vec u) { return mul(g, u); });
  }
}

// The second operand of max and min is the one whose NaN stays.
inline void xielu_row(const XieluFactors& factors, const float* x, int size, float* y) {
  map_row(x, nullptr, size, y, [&](Vec v, Vec) {
    const Vec high = max(zero(), v);
    const Vec low = min(zero(), v);
    const Vec bent = add(exp(low), mul(add(low, broadcast(1.0f)), broadcast(-1.0f)));
    const Vec both = fma(bent, broadcast(factors.negative), mul(v, broadcast(factors.linear)));
    return fma(mul(high, high), broadcast(factors.positive), both);
  });
}

// tanh(v) = 1 - 2 / (exp(2 v) + 1)
inline void scale_softcap_row(float scale, float softcap, int size, float* x) {
  if (softcap == 0) return map_row(x, nullptr, size, x, [&](Vec v, Vec) { return mul(v, broadcast(scale)); });
  const Vec slope = broadcast(2 * scale / softcap);
  map_row(x, nullptr, size, x, [&](Vec v, Vec) {
    const Vec shrunk = div(broadcast(-2.0f), add(exp(mul(v, slope)), broadcast(1.0f)));
    return fma(shrunk, broadcast(softcap), broadcast(softcap));
  });
}

}  // namespace turbomind::TM_ISA
