// Vectors of NEON, whose functions are those of avx512.h. Included by kernels/cpu/simd.h only.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "kernels/types.h"

namespace turbomind::TM_ISA {

inline constexpr int kLanes = 4;
inline constexpr int kRegisters = 32;
using Vec = float32x4_t;

inline Vec zero() {
  return vdupq_n_f32(0);
}
inline Vec broadcast(float value) {
  return vdupq_n_f32(value);
}
inline Vec load(const float* p) {
  return vld1q_f32(p);
}
inline Vec load(const bf16* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(&p->bits), 16));
}
inline Vec load(const half* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits)));
}
inline void store(float* p, Vec v) {
  vst1q_f32(p, v);
}
inline Vec add(Vec a, Vec b) {
  return vaddq_f32(a, b);
}
inline Vec mul(Vec a, Vec b) {
  return vmulq_f32(a, b);
}
inline Vec div(Vec a, Vec b) {
  return vdivq_f32(a, b);
}
inline Vec sqrt(Vec a) {
  return vsqrtq_f32(a);
}
// b where either is NaN, as on x86.
inline Vec max(Vec a, Vec b) {
  return vbslq_f32(vcgtq_f32(a, b), a, b);
}
inline Vec min(Vec a, Vec b) {
  return vbslq_f32(vcltq_f32(a, b), a, b);
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return vfmaq_f32(c, a, b);
}
inline Vec round(Vec a) {
  return vrndnq_f32(a);
}
// n is integral and in [-126, 127].
inline Vec scale_by_power_of_two(Vec a, Vec n) {
  const int32x4_t exponent = vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23);
  return vmulq_f32(a, vreinterpretq_f32_s32(exponent));
}
inline Vec zero_below(float limit, Vec x, Vec v) {
  return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(v), vcltq_f32(x, vdupq_n_f32(limit))));
}
inline float reduce_add(Vec v) {
  return vaddvq_f32(v);  // in pairs
}
inline void reduce_add4(const Vec v[4], float sums[4]) {
  store(sums, vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3])));
}
inline float reduce_max(Vec v) {
  return vmaxvq_f32(v);
}

using IVec = int32x4_t;

inline uint8x16_t as_bytes(IVec v) {
  return vreinterpretq_u8_s32(v);
}
inline Vec absolute(Vec a) {
  return vabsq_f32(a);
}
inline IVec store_quantized(int8_t* p, Vec v) {
  const IVec quantized = vcvtnq_s32_f32(v);
  const int16x4_t words = vqmovn_s32(quantized);
  const int8x8_t bytes = vqmovn_s16(vcombine_s16(words, words));
  std::memcpy(p, &bytes, kLanes);
  return quantized;
}
inline IVec add_ints(IVec a, IVec b) {
  return vaddq_s32(a, b);
}
inline IVec broadcast_int(int32_t value) {
  return vdupq_n_s32(value);
}
inline IVec load_bytes(const uint8_t* p) {
  return vreinterpretq_s32_u8(vld1q_u8(p));
}
inline IVec upcast_bytes(const uint8_t* p) {
  uint32_t four;
  std::memcpy(&four, p, sizeof(four));
  return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four)))));
}
inline IVec upcast_bytes(const int8_t* p) {
  uint32_t four;
  std::memcpy(&four, p, sizeof(four));
  return vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four))));
}
template <int kShift>
inline IVec shift_bytes(IVec v) {
  if constexpr (kShift > 0) {
    return vreinterpretq_s32_u8(vshrq_n_u8(as_bytes(v), kShift));
  } else {
    return vreinterpretq_s32_u8(vshlq_n_u8(as_bytes(v), -kShift));
  }
}
template <int kShift>
inline IVec shift_ints(IVec v) {
  return vshrq_n_s32(v, kShift);
}
template <int kMask>
inline IVec masked_bytes(IVec v) {
  return vreinterpretq_s32_u8(vandq_u8(as_bytes(v), vdupq_n_u8(kMask)));
}
template <int kMask>
inline IVec with_masked_bytes(IVec others, IVec v) {
  return vorrq_s32(others, masked_bytes<kMask>(v));
}
inline IVec multiply(IVec a, IVec b) {
  return vmulq_s32(a, b);
}
inline Vec to_floats(IVec v) {
  return vcvtq_f32_s32(v);
}
inline Vec iota() {
  constexpr float kIndices[kLanes] = {0, 1, 2, 3};
  return vld1q_f32(kIndices);
}
inline Vec select_nonzero(Vec w, Vec v) {
  return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(v), vceqzq_f32(w)));
}
inline Vec low_bf16(IVec pairs) {
  return vreinterpretq_f32_s32(vshlq_n_s32(pairs, 16));
}
inline Vec high_bf16(IVec pairs) {
  return vreinterpretq_f32_s32(vandq_s32(pairs, vdupq_n_s32(static_cast<int>(0xFFFF0000u))));
}
#if defined(__ARM_FEATURE_MATMUL_INT8)
inline constexpr bool kHasDot4 = true;
inline IVec dot4(IVec sum, IVec u, IVec s) {
  return vusdotq_s32(sum, as_bytes(u), vreinterpretq_s8_s32(s));
}
inline IVec dot4_small(IVec sum, IVec u, IVec s) {
  return dot4(sum, u, s);
}
#elif defined(__ARM_FEATURE_DOTPROD)
inline constexpr bool kHasDot4 = true;
inline IVec dot4_small(IVec sum, IVec u, IVec s) {
  return vdotq_s32(sum, vreinterpretq_s8_s32(u), vreinterpretq_s8_s32(s));
}
// sum u s = sum (u - 128) s + 64 s + 64 s
inline IVec dot4(IVec sum, IVec u, IVec s) {
  const IVec half = vreinterpretq_s32_u8(vdupq_n_u8(64));
  const IVec shifted = vreinterpretq_s32_u8(veorq_u8(as_bytes(u), vdupq_n_u8(128)));
  return vaddq_s32(dot4_small(sum, shifted, s), dot4_small(dot4_small(vdupq_n_s32(0), half, s), half, s));
}
#else
inline constexpr bool kHasDot4 = false;
inline IVec dot4(IVec sum, IVec u, IVec s) {
  const int8x16_t shifted = vreinterpretq_s8_u8(veorq_u8(as_bytes(u), vdupq_n_u8(128)));
  const int8x16_t bytes = vreinterpretq_s8_s32(s);
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(shifted), vget_low_s8(bytes)));
  const int32x4_t high = vpaddlq_s16(vmull_high_s8(shifted, bytes));
  const int32x4_t total = vshlq_n_s32(vpaddlq_s16(vpaddlq_s8(bytes)), 7);
  return vaddq_s32(vaddq_s32(sum, total), vpaddq_s32(low, high));
}
// Only for u below 128.
inline IVec dot2_bytes(IVec sum, IVec u, IVec s) {
  const int8x16_t a = vreinterpretq_s8_s32(u);
  const int8x16_t b = vreinterpretq_s8_s32(s);
  const int16x8_t pairs = vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b));
  return vreinterpretq_s32_s16(vaddq_s16(vreinterpretq_s16_s32(sum), pairs));
}
inline IVec add_int16_pairs(IVec sum, IVec pairs) {
  return vpadalq_s16(sum, vreinterpretq_s16_s32(pairs));
}
inline IVec dot4_small(IVec sum, IVec u, IVec s) {
  return dot4(sum, u, s);
}
#endif

}  // namespace turbomind::TM_ISA
