// Vectors of float32 lanes and of integers, in the widest instruction set the including file is compiled for.
//
// Kernels are written once against this page and compiled once an instruction set (see isa.h); TM_ISA names the
// namespace.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include "kernels/cpu/simd/avx512.h"
#elif defined(__AVX2__) && defined(__FMA__)
#include "kernels/cpu/simd/avx2.h"
#elif defined(TM_NEON)
#include "kernels/cpu/simd/neon.h"
#else
#include "kernels/cpu/simd/scalar.h"
#endif

namespace turbomind::TM_ISA {

// Of each byte.
inline IVec low_halves(IVec v) {
  return masked_bytes<0x0F>(v);
}
inline IVec high_halves(IVec v) {
  return masked_bytes<0x0F>(shift_bytes<4>(v));
}

// Four neighbouring bytes in every lane.
inline IVec broadcast_bytes(const int8_t* p) {
  int32_t four;
  std::memcpy(&four, p, sizeof(four));
  return broadcast_int(four);
}

// The first `count` (< kLanes) elements, zeros after.
template <class T>
inline Vec load_partial(const T* p, int count) {
  T lanes[kLanes] = {};
  std::memcpy(lanes, p, static_cast<size_t>(count) * sizeof(T));
  return load(lanes);
}

inline void store_partial(float* p, Vec v, int count) {
  float lanes[kLanes];
  store(lanes, v);
  std::memcpy(p, lanes, static_cast<size_t>(count) * sizeof(float));
}

// Brings `count` floats into the cache, for what the processor does not foresee.
inline void prefetch(const float* data, int count) {
  constexpr int kLineFloats = 16;
  for (int i = 0; i < count; i += kLineFloats) __builtin_prefetch(data + i);
}

// e^x within 2 ulp for x <= 88; results below the smallest normal number are 0 (so exp(-infinity) is 0); NaN stays NaN.
// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor polynomial of degree 7.
inline Vec exp(Vec x) {
  const Vec clamped = max(broadcast(-87.0f), min(broadcast(88.0f), x));
  const Vec n = round(mul(clamped, broadcast(1.44269504f)));
  Vec r = fma(n, broadcast(-0.693359375f), clamped);
  r = fma(n, broadcast(2.12194440e-4f), r);
  Vec p = broadcast(1.0f / 5040);
  p = fma(p, r, broadcast(1.0f / 720));
  p = fma(p, r, broadcast(1.0f / 120));
  p = fma(p, r, broadcast(1.0f / 24));
  p = fma(p, r, broadcast(1.0f / 6));
  p = fma(p, r, broadcast(0.5f));
  p = fma(p, r, broadcast(1.0f));
  p = fma(p, r, broadcast(1.0f));
  return zero_below(-87.0f, x, scale_by_power_of_two(p, n));
}

// 1 - 2 / (e^2x + 1); within 3e-7 absolutely.
inline Vec tanh(Vec x) {
  const Vec e = exp(add(x, x));
  return add(broadcast(1.0f), mul(broadcast(-2.0f), div(broadcast(1.0f), add(e, broadcast(1.0f)))));
}

}  // namespace turbomind::TM_ISA
