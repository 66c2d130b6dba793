// Vectors of AVX2, whose functions are those of avx512.h. Included by kernels/cpu/simd.h only.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "kernels/types.h"

namespace turbomind::TM_ISA {

inline constexpr int kLanes = 8;
inline constexpr int kRegisters = 16;
using Vec = __m256;

inline Vec zero() {
  return _mm256_setzero_ps();
}
inline Vec broadcast(float value) {
  return _mm256_set1_ps(value);
}
inline Vec load(const float* p) {
  return _mm256_loadu_ps(p);
}
inline Vec load(const bf16* p) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
inline void store(float* p, Vec v) {
  _mm256_storeu_ps(p, v);
}
inline Vec add(Vec a, Vec b) {
  return _mm256_add_ps(a, b);
}
inline Vec mul(Vec a, Vec b) {
  return _mm256_mul_ps(a, b);
}
inline Vec div(Vec a, Vec b) {
  return _mm256_div_ps(a, b);
}
inline Vec sqrt(Vec a) {
  return _mm256_sqrt_ps(a);
}
inline Vec max(Vec a, Vec b) {
  return _mm256_max_ps(a, b);
}
inline Vec min(Vec a, Vec b) {
  return _mm256_min_ps(a, b);
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return _mm256_fmadd_ps(a, b, c);
}
inline Vec round(Vec a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// n is integral and in [-126, 127].
inline Vec scale_by_power_of_two(Vec a, Vec n) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(a, _mm256_castsi256_ps(exponent));
}

inline Vec zero_below(float limit, Vec x, Vec v) {
  return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_LT_OQ), v);
}

inline __m128 fold(Vec v) {
  return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
}
inline float reduce_add(Vec v) {
  const __m128 quarters = fold(v);
  const __m128 pairs = _mm_add_ps(quarters, _mm_shuffle_ps(quarters, quarters, 0xB1));
  return _mm_cvtss_f32(_mm_add_ps(pairs, _mm_shuffle_ps(pairs, pairs, 0x4E)));
}
inline void reduce_add4(const Vec v[4], float sums[4]) {
  __m128 a = fold(v[0]), b = fold(v[1]), c = fold(v[2]), d = fold(v[3]);
  _MM_TRANSPOSE4_PS(a, b, c, d);
  _mm_storeu_ps(sums, _mm_add_ps(_mm_add_ps(a, b), _mm_add_ps(c, d)));
}
inline float reduce_max(Vec v) {
  float lanes[kLanes];
  store(lanes, v);
  float largest = lanes[0];
  for (int i = 1; i < kLanes; ++i) largest = lanes[i] > largest ? lanes[i] : largest;
  return largest;
}
inline Vec load(const half* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

using IVec = __m256i;

inline Vec absolute(Vec a) {
  return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
inline IVec store_quantized(int8_t* p, Vec v) {
  const IVec quantized = _mm256_cvtps_epi32(v);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(quantized), _mm256_extracti128_si256(quantized, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
  return quantized;
}
inline IVec add_ints(IVec a, IVec b) {
  return _mm256_add_epi32(a, b);
}

inline IVec broadcast_int(int32_t value) {
  return _mm256_set1_epi32(value);
}
inline IVec load_bytes(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline IVec upcast_bytes(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
inline IVec upcast_bytes(const int8_t* p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
template <int kShift>
inline IVec shift_bytes(IVec v) {
  return kShift >= 0 ? _mm256_srli_epi16(v, std::max(0, kShift)) : _mm256_slli_epi16(v, std::max(0, -kShift));
}
template <int kShift>
inline IVec shift_ints(IVec v) {
  return _mm256_srai_epi32(v, kShift);
}
template <int kMask>
inline IVec masked_bytes(IVec v) {
  return _mm256_and_si256(v, _mm256_set1_epi8(kMask));
}
template <int kMask>
inline IVec with_masked_bytes(IVec others, IVec v) {
  return _mm256_or_si256(others, masked_bytes<kMask>(v));
}
inline IVec multiply(IVec a, IVec b) {
  return _mm256_mullo_epi32(a, b);
}
inline Vec to_floats(IVec v) {
  return _mm256_cvtepi32_ps(v);
}
inline Vec iota() {
  return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7);
}
inline Vec select_nonzero(Vec w, Vec v) {
  return _mm256_and_ps(_mm256_cmp_ps(w, _mm256_setzero_ps(), _CMP_NEQ_UQ), v);
}
inline Vec low_bf16(IVec pairs) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}
inline Vec high_bf16(IVec pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
}
#if defined(__AVXVNNI__)
inline constexpr bool kHasDot4 = true;
inline IVec dot4(IVec sum, IVec u, IVec s) {
  return _mm256_dpbusd_avx_epi32(sum, u, s);
}
#else
inline constexpr bool kHasDot4 = false;
inline IVec dot4(IVec sum, IVec u, IVec s) {
  const IVec even =
      _mm256_madd_epi16(_mm256_and_si256(u, _mm256_set1_epi16(0xFF)), _mm256_srai_epi16(_mm256_slli_epi16(s, 8), 8));
  const IVec odd = _mm256_madd_epi16(_mm256_srli_epi16(u, 8), _mm256_srai_epi16(s, 8));
  return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}
inline IVec dot2_bytes(IVec sum, IVec u, IVec s) {
  return _mm256_add_epi16(sum, _mm256_maddubs_epi16(u, s));
}
inline IVec add_int16_pairs(IVec sum, IVec pairs) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#endif
inline IVec dot4_small(IVec sum, IVec u, IVec s) {
  return dot4(sum, u, s);
}

}  // namespace turbomind::TM_ISA
