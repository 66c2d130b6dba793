// Vectors of AVX-512. Included by kernels/cpu/simd.h only.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "kernels/types.h"

namespace turbomind::TM_ISA {

inline constexpr int kLanes = 16;
inline constexpr int kRegisters = 32;
using Vec = __m512;

inline Vec zero() {
  return _mm512_setzero_ps();
}
inline Vec broadcast(float value) {
  return _mm512_set1_ps(value);
}
inline Vec load(const float* p) {
  return _mm512_loadu_ps(p);
}
inline Vec load(const bf16* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
inline void store(float* p, Vec v) {
  _mm512_storeu_ps(p, v);
}
inline Vec add(Vec a, Vec b) {
  return _mm512_add_ps(a, b);
}
inline Vec mul(Vec a, Vec b) {
  return _mm512_mul_ps(a, b);
}
inline Vec div(Vec a, Vec b) {
  return _mm512_div_ps(a, b);
}
inline Vec sqrt(Vec a) {
  return _mm512_sqrt_ps(a);
}
inline Vec max(Vec a, Vec b) {
  return _mm512_max_ps(a, b);
}
inline Vec min(Vec a, Vec b) {
  return _mm512_min_ps(a, b);
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return _mm512_fmadd_ps(a, b, c);
}  // a b + c
inline Vec round(Vec a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Vec scale_by_power_of_two(Vec a, Vec n) {
  return _mm512_scalef_ps(a, n);
}

// v, but 0 where x is below the limit.
inline Vec zero_below(float limit, Vec x, Vec v) {
  return _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_LT_OQ), _mm512_setzero_ps());
}

inline __m128 fold(Vec v) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}
// The sum of the lanes, in a fixed order.
inline float reduce_add(Vec v) {
  const __m128 quarters = fold(v);
  const __m128 pairs = _mm_add_ps(quarters, _mm_shuffle_ps(quarters, quarters, 0xB1));
  return _mm_cvtss_f32(_mm_add_ps(pairs, _mm_shuffle_ps(pairs, pairs, 0x4E)));
}
// Sums of the lanes of four vectors, each in the order of reduce_add.
inline void reduce_add4(const Vec v[4], float sums[4]) {
  // Halves, then quarters of each are side by side; then pairs of lanes and pairs of those are added.
  const auto halves = [](Vec a, Vec b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  };
  const Vec low = halves(v[0], v[1]);
  const Vec high = halves(v[2], v[3]);
  const Vec quarters = _mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xDD));
  const Vec pairs = _mm512_add_ps(quarters, _mm512_permute_ps(quarters, 0xB1));
  const Vec totals = _mm512_add_ps(pairs, _mm512_permute_ps(pairs, 0x4E));
  const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm_storeu_ps(sums, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, totals)));
}
inline float reduce_max(Vec v) {
  return _mm512_reduce_max_ps(v);
}

inline Vec load(const half* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

using IVec = __m512i;  // kLanes int32, or 4 kLanes bytes

// The same bits.
inline IVec as_ints(Vec v) {
  return _mm512_castps_si512(v);
}
inline Vec absolute(Vec a) {
  return _mm512_abs_ps(a);
}
// Nearest integers, ties to even, of values in [-128, 127]; stored as bytes and returned.
inline IVec store_quantized(int8_t* p, Vec v) {
  const IVec quantized = _mm512_cvtps_epi32(v);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(quantized));
  return quantized;
}
inline IVec add_ints(IVec a, IVec b) {
  return _mm512_add_epi32(a, b);
}

inline IVec broadcast_int(int32_t value) {
  return _mm512_set1_epi32(value);
}
inline IVec load_bytes(const uint8_t* p) {
  IVec bytes = _mm512_loadu_si512(p);
  asm("" : "+v"(bytes));  // GCC 12 reads them again at each use
  return bytes;
}
inline IVec upcast_bytes(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline IVec upcast_bytes(const int8_t* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// Each byte shifted to the right, or by a negative number to the left; its bits beyond are those of neighbours.
template <int kShift>
inline IVec shift_bytes(IVec v) {
  return kShift >= 0 ? _mm512_srli_epi16(v, std::max(0, kShift)) : _mm512_slli_epi16(v, std::max(0, -kShift));
}
// Each lane divided by 2^kShift, rounded down.
template <int kShift>
inline IVec shift_ints(IVec v) {
  return _mm512_srai_epi32(v, kShift);
}
// Of each byte the bits of kMask.
template <int kMask>
inline IVec masked_bytes(IVec v) {
  return _mm512_and_si512(v, _mm512_set1_epi8(kMask));
}
// `others` with the bits of kMask of each byte.
template <int kMask>
inline IVec with_masked_bytes(IVec others, IVec v) {
  return _mm512_ternarylogic_epi32(v, _mm512_set1_epi8(kMask), others, 0xEA);  // v & mask | others
}
inline IVec multiply(IVec a, IVec b) {
  return _mm512_mullo_epi32(a, b);
}
inline Vec to_floats(IVec v) {
  return _mm512_cvtepi32_ps(v);
}
// 0, 1, 2, ...
inline Vec iota() {
  return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
// v where w is not 0, else 0.
inline Vec select_nonzero(Vec w, Vec v) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(w, _mm512_setzero_ps(), _CMP_NEQ_UQ), v);
}
// The lower and the upper 16 bits of each lane as bfloat16.
inline Vec low_bf16(IVec pairs) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}
inline Vec high_bf16(IVec pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
}
#if defined(__AVX512BF16__)
inline IVec low_words(IVec pairs) {
  return _mm512_and_si512(pairs, _mm512_set1_epi32(0xFFFF));
}
// Adds to each float32 lane the two products of its bfloat16 pairs.
inline Vec dot2(Vec sum, IVec a, IVec b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}
// Neighbouring floats rounded to a pair of bfloat16, stored in the first one's place; the second one's becomes 0.
inline void store_pairs(float* p, Vec v) {
  const __m256i pairs = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v));
  _mm512_storeu_si512(p, _mm512_cvtepu32_epi64(pairs));
}
#endif
// Adds to each int32 lane the four products of its bytes, unsigned in u and signed in s; exact.
#if defined(__AVX512VNNI__)
inline constexpr bool kHasDot4 = true;  // in one instruction
inline IVec dot4(IVec sum, IVec u, IVec s) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(u), "v"(s));  // GCC 12 copies the sums that it has for the intrinsic
  return sum;
}
#else
inline constexpr bool kHasDot4 = false;
inline IVec dot4(IVec sum, IVec u, IVec s) {
  const IVec even =
      _mm512_madd_epi16(_mm512_and_si512(u, _mm512_set1_epi16(0xFF)), _mm512_srai_epi16(_mm512_slli_epi16(s, 8), 8));
  const IVec odd = _mm512_madd_epi16(_mm512_srli_epi16(u, 8), _mm512_srai_epi16(s, 8));
  return _mm512_add_epi32(sum, _mm512_add_epi32(even, odd));
}
// Adds to each int16 lane the two products of its bytes, unsigned in u and signed in s.
inline IVec dot2_bytes(IVec sum, IVec u, IVec s) {
  return _mm512_add_epi16(sum, _mm512_maddubs_epi16(u, s));
}
// Adds to each int32 lane the two int16 in its place.
inline IVec add_int16_pairs(IVec sum, IVec pairs) {
  return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
#endif
// The same, for u below 128.
inline IVec dot4_small(IVec sum, IVec u, IVec s) {
  return dot4(sum, u, s);
}

}  // namespace turbomind::TM_ISA
