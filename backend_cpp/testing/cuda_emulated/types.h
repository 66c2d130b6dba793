// CUDA's own vector and 16-bit types, and the conversions kernels use, with CUDA's names.
#pragma once

#include <cstdint>

#include "kernels/types.h"

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct uint3 {
  unsigned x, y, z;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
inline int2 make_int2(int x, int y) {
  return {x, y};
}
inline uint2 make_uint2(unsigned x, unsigned y) {
  return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

struct __nv_bfloat16 {
  uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
struct __half {
  uint16_t bits;
};
struct alignas(4) __half2 {
  __half x, y;
};

inline float __bfloat162float(__nv_bfloat16 v) {
  return turbomind::to_float(turbomind::bf16{v.bits});
}
inline __nv_bfloat16 __float2bfloat16_rn(float v) {
  return {turbomind::to_bf16(v).bits};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}

inline float __half2float(__half v) {
  return turbomind::to_float(turbomind::half{v.bits});
}
inline __half __float2half_rn(float v) {
  return {turbomind::to_half(v).bits};
}
inline __half2 __floats2half2_rn(float x, float y) {
  return {__float2half_rn(x), __float2half_rn(y)};
}
inline float2 __half22float2(__half2 v) {
  return {__half2float(v.x), __half2float(v.y)};
}
inline __half __ushort_as_half(unsigned short v) {
  return {v};
}

using __nv_fp8_storage_t = unsigned char;
enum __nv_saturation_t { __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3 };

// Only what kernels use: to E4M3, the largest number for what is beyond.
inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float v, __nv_saturation_t, __nv_fp8_interpretation_t) {
  return turbomind::to_float8(v).bits;
}

// Arithmetic on pairs: one rounding, of the exact result.
#define TM_PAIRS(PAIR, WIDEN, NARROW)                                                                    \
  inline PAIR __hsub2(PAIR a, PAIR b) {                                                                  \
    return {NARROW(WIDEN(a.x) - WIDEN(b.x)), NARROW(WIDEN(a.y) - WIDEN(b.y))};                           \
  }                                                                                                      \
  inline PAIR __hmul2(PAIR a, PAIR b) {                                                                  \
    return {NARROW(WIDEN(a.x) * WIDEN(b.x)), NARROW(WIDEN(a.y) * WIDEN(b.y))};                           \
  }                                                                                                      \
  inline PAIR __hfma2(PAIR a, PAIR b, PAIR c) {                                                          \
    return {NARROW(WIDEN(a.x) * WIDEN(b.x) + WIDEN(c.x)), NARROW(WIDEN(a.y) * WIDEN(b.y) + WIDEN(c.y))}; \
  }
TM_PAIRS(__nv_bfloat162, __bfloat162float, __float2bfloat16_rn)
TM_PAIRS(__half2, __half2float, __float2half_rn)
#undef TM_PAIRS
