// Vectors of float32 lanes and of integers, in the widest instruction set the including file is compiled for.
//
// Kernels are written once against this page and compiled once an instruction set (see isa.h); TM_ISA names the
// namespace.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/types.h"

namespace turbomind::TM_ISA {

#if defined(__AVX512F__)

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

inline __m128 fold(Vec v) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}
inline float reduce_max(Vec v) {
  return _mm512_reduce_max_ps(v);
}

inline Vec load(const half* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

using IVec = __m512i;  // kLanes int32, or 4 kLanes bytes

// The same bits.
inline Vec as_lanes(Vec v) {
  return v;
}
inline Vec as_lanes(IVec v) {
  return _mm512_castsi512_ps(v);
}
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
  return _mm512_loadu_si512(p);
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

#elif defined(__AVX2__) && defined(__FMA__)

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

inline __m128 fold(Vec v) {
  return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
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

// The same bits.
inline Vec as_lanes(Vec v) {
  return v;
}
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

#else

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
template <int kMask>
inline IVec masked_bytes(IVec v) {
  return map_int([&](int i) { return v.lane[i] & kMask * 0x01010101; });
}
template <int kMask>
inline IVec with_masked_bytes(IVec others, IVec v) {
  return map_int([&](int i) { return others.lane[i] | (v.lane[i] & kMask * 0x01010101); });
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

#endif

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

// The sum of the lanes, in a fixed order.
inline float reduce_add(Vec v) {
#if defined(__AVX2__)
  const __m128 quarters = fold(v);
  const __m128 pairs = _mm_add_ps(quarters, _mm_shuffle_ps(quarters, quarters, 0xB1));
  return _mm_cvtss_f32(_mm_add_ps(pairs, _mm_shuffle_ps(pairs, pairs, 0x4E)));
#else
  return (v.lane[0] + v.lane[1]) + (v.lane[2] + v.lane[3]);
#endif
}

// Sums of the lanes of four vectors, each in the order of reduce_add.
inline void reduce_add4(const Vec v[4], float sums[4]) {
#if defined(__AVX512F__)
  // Halves, then quarters of each are side by side; then pairs of lanes and pairs of those are added as below.
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
#elif defined(__AVX2__)
  __m128 a = fold(v[0]), b = fold(v[1]), c = fold(v[2]), d = fold(v[3]);
  _MM_TRANSPOSE4_PS(a, b, c, d);
  _mm_storeu_ps(sums, _mm_add_ps(_mm_add_ps(a, b), _mm_add_ps(c, d)));
#else
  for (int i = 0; i < 4; ++i) sums[i] = reduce_add(v[i]);
#endif
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
  const Vec result = scale_by_power_of_two(p, n);
#if defined(__AVX512F__)
  return _mm512_mask_mov_ps(result, _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_LT_OQ), _mm512_setzero_ps());
#elif defined(__AVX2__)
  return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(-87.0f), _CMP_LT_OQ), result);
#else
  return map([&](int i) { return x.lane[i] < -87.0f ? 0.0f : result.lane[i]; });
#endif
}

// 1 - 2 / (e^2x + 1); within 3e-7 absolutely.
inline Vec tanh(Vec x) {
  const Vec e = exp(add(x, x));
  return add(broadcast(1.0f), mul(broadcast(-2.0f), div(broadcast(1.0f), add(e, broadcast(1.0f)))));
}

}  // namespace turbomind::TM_ISA
