// Vectors in plain C++, whose functions are those of avx512.h. Included by kernels/cpu/simd.h only.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/types.h"

namespace turbomind::TM_ISA {

inline constexpr int kLanes = 4;
inline constexpr int kRegisters = 16;
struct Vec {
  float lane[4];
};

template <class Operation>
inline Vec map(Operation operation) {
  Vec result;
  for (int i = 0; i < kLanes; ++i) result.lane[i] = operation(i);
  return result;
}
inline Vec zero() {
  return Vec{};
}
inline Vec broadcast(float value) {
  return map([=](int) { return value; });
}
template <class T>
inline Vec load(const T* p) {
  return map([=](int i) { return to_float(p[i]); });
}
inline void store(float* p, Vec v) {
  std::memcpy(p, v.lane, sizeof(v.lane));
}
inline Vec add(Vec a, Vec b) {
  return map([&](int i) { return a.lane[i] + b.lane[i]; });
}
inline Vec mul(Vec a, Vec b) {
  return map([&](int i) { return a.lane[i] * b.lane[i]; });
}
inline Vec div(Vec a, Vec b) {
  return map([&](int i) { return a.lane[i] / b.lane[i]; });
}
inline Vec sqrt(Vec a) {
  return map([&](int i) { return std::sqrt(a.lane[i]); });
}
inline Vec max(Vec a, Vec b) {
  return map([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline Vec min(Vec a, Vec b) {
  return map([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return map([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
}
inline Vec round(Vec a) {
  return map([&](int i) { return std::nearbyint(a.lane[i]); });
}
inline Vec scale_by_power_of_two(Vec a, Vec n) {
  return map([&](int i) { return std::ldexp(a.lane[i], static_cast<int>(n.lane[i])); });
}
inline Vec zero_below(float limit, Vec x, Vec v) {
  return map([&](int i) { return x.lane[i] < limit ? 0.0f : v.lane[i]; });
}
inline float reduce_add(Vec v) {
  return (v.lane[0] + v.lane[1]) + (v.lane[2] + v.lane[3]);
}
inline void reduce_add4(const Vec v[4], float sums[4]) {
  for (int i = 0; i < 4; ++i) sums[i] = reduce_add(v[i]);
}
inline float reduce_max(Vec v) {
  float largest = v.lane[0];
  for (int i = 1; i < kLanes; ++i) largest = v.lane[i] > largest ? v.lane[i] : largest;
  return largest;
}

struct IVec {
  int32_t lane[4];
};

template <class Operation>
inline IVec map_int(Operation operation) {
  IVec result;
  for (int i = 0; i < kLanes; ++i) result.lane[i] = operation(i);
  return result;
}
inline IVec broadcast_int(int32_t value) {
  return map_int([=](int) { return value; });
}
inline IVec load_bytes(const uint8_t* p) {
  IVec result;
  std::memcpy(result.lane, p, sizeof(result.lane));
  return result;
}
template <class T>
inline IVec upcast_bytes(const T* p) {
  return map_int([=](int i) { return p[i]; });
}
template <int kShift>
inline IVec shift_bytes(IVec v) {
  return map_int([&](int i) {
    const auto lane = static_cast<uint32_t>(v.lane[i]);
    return static_cast<int32_t>(kShift >= 0 ? lane >> std::max(0, kShift) : lane << std::max(0, -kShift));
  });
}
template <int kShift>
inline IVec shift_ints(IVec v) {
  return map_int([&](int i) { return v.lane[i] >> kShift; });
}
template <int kMask>
inline IVec masked_bytes(IVec v) {
  return map_int([&](int i) { return v.lane[i] & static_cast<int32_t>(kMask * 0x01010101u); });
}
template <int kMask>
inline IVec with_masked_bytes(IVec others, IVec v) {
  return map_int([&](int i) { return others.lane[i] | (v.lane[i] & static_cast<int32_t>(kMask * 0x01010101u)); });
}
inline IVec multiply(IVec a, IVec b) {
  return map_int([&](int i) { return a.lane[i] * b.lane[i]; });
}
inline Vec to_floats(IVec v) {
  return map([&](int i) { return static_cast<float>(v.lane[i]); });
}
inline Vec absolute(Vec a) {
  return map([&](int i) { return std::fabs(a.lane[i]); });
}
inline IVec store_quantized(int8_t* p, Vec v) {
  const IVec quantized = map_int([&](int i) { return static_cast<int32_t>(std::nearbyint(v.lane[i])); });
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int8_t>(quantized.lane[i]);
  return quantized;
}
inline IVec add_ints(IVec a, IVec b) {
  return map_int([&](int i) { return a.lane[i] + b.lane[i]; });
}
inline Vec iota() {
  return map([](int i) { return static_cast<float>(i); });
}
inline Vec select_nonzero(Vec w, Vec v) {
  return map([&](int i) { return w.lane[i] != 0 ? v.lane[i] : 0.0f; });
}
inline Vec low_bf16(IVec pairs) {
  return map([&](int i) { return to_float(bf16{static_cast<uint16_t>(pairs.lane[i])}); });
}
inline Vec high_bf16(IVec pairs) {
  return map([&](int i) { return to_float(bf16{static_cast<uint16_t>(static_cast<uint32_t>(pairs.lane[i]) >> 16)}); });
}
inline constexpr bool kHasDot4 = true;  // no instruction does better
inline IVec dot4(IVec sum, IVec u, IVec s) {
  return map_int([&](int i) {
    int32_t total = sum.lane[i];
    for (int shift = 0; shift < 32; shift += 8) {
      total += static_cast<int32_t>(static_cast<uint8_t>(u.lane[i] >> shift)) * static_cast<int8_t>(s.lane[i] >> shift);
    }
    return total;
  });
}
inline IVec dot4_small(IVec sum, IVec u, IVec s) {
  return dot4(sum, u, s);
}

}  // namespace turbomind::TM_ISA
