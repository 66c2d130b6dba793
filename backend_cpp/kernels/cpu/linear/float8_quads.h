// Weights of float8 as lanes to multiply with. Included by kernels_isa.cc only.
//
// Float8Quads holds four neighbouring inputs of kLanes outputs: 4 kLanes bytes of a tile. Widened, an output's four
// numbers are in two lanes of two vectors, so its products with a row gather in two lanes of a pair of sums, which
// outputs_of adds up. kFactor is what the widened numbers are to be multiplied with, and Input what x is made of:
// store_quad puts four inputs where multiply_add reads them.
#pragma once

#include <array>

#include "kernels/cpu/simd.h"

namespace turbomind::TM_ISA {

struct QuadSums {
  Vec pair[2];
};

// The bfloat16 that a code without sign stands for, exactly; those that are no numbers count as 480, as their scale
// says that they are none.
constexpr unsigned float8_as_bf16(unsigned value) {
  unsigned exponent = value >> 3;
  unsigned mantissa = value & 7;
  if (exponent == 0 && mantissa != 0) {  // subnormal: shifted until its first bit is the implied one
    for (exponent = 1; mantissa < 8; --exponent) mantissa <<= 1;
    mantissa &= 7;
  }
  return value == 0 ? 0 : (exponent + 120) << 7 | mantissa << 4;
}

#if defined(__AVX512BF16__) && defined(__AVX512VBMI__)

// The upper and the lower bytes of the bfloat16 that the 128 codes without sign stand for.
struct Float8Tables {
  std::array<uint8_t, 128> high;
  std::array<uint8_t, 128> low;
};

inline constexpr Float8Tables kFloat8Tables = [] {
  Float8Tables tables{};
  for (unsigned value = 0; value < 128; ++value) {
    const unsigned bits = float8_as_bf16(value);
    tables.high[value] = static_cast<uint8_t>(bits >> 8);
    tables.low[value] = static_cast<uint8_t>(bits);
  }
  return tables;
}();

class Float8Quads {
 public:
  using Input = bf16;
  static constexpr float kFactor = 1;

  static void store_quad(const float* x, Input* quad) {
    const __m128bh four = _mm_cvtneps_pbh(_mm_loadu_ps(x));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(quad), reinterpret_cast<__m128i>(four));
  }

  void load(const uint8_t* quantized) {
    const IVec bytes = load_bytes(quantized);
    const IVec low = _mm512_permutex2var_epi8(load_bytes(kFloat8Tables.low.data()), bytes,
                                              load_bytes(kFloat8Tables.low.data() + 64));
    IVec high = _mm512_permutex2var_epi8(load_bytes(kFloat8Tables.high.data()), bytes,
                                         load_bytes(kFloat8Tables.high.data() + 64));
    // high | (bytes & 0x80)
    high = _mm512_ternarylogic_epi32(high, bytes, _mm512_set1_epi8(static_cast<char>(0x80)), 0xF8);
    upcast_[0] = _mm512_unpacklo_epi8(low, high);
    upcast_[1] = _mm512_unpackhi_epi8(low, high);
  }

  void multiply_add(const Input* quad, QuadSums& sums) const {
    int64_t four;
    std::memcpy(&four, quad, sizeof(four));
    const IVec x = _mm512_set1_epi64(four);
    sums.pair[0] = dot2(sums.pair[0], upcast_[0], x);
    sums.pair[1] = dot2(sums.pair[1], upcast_[1], x);
  }

  // Outputs 0 and 1, and outputs 2 and 3, of each 128 bits.
  const IVec (&upcast() const)[2] { return upcast_; }

  static Vec outputs_of(const QuadSums& sums) {
    const auto& [a, b] = sums.pair;
    return add(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xDD));
  }

 private:
  IVec upcast_[2];
};

#else

// Of lanes with the bytes b0 b1 b2 b3: b0 and b2 of each, and b1 and b3. A half whose sign, exponent and first bits of
// mantissa are those of a code is 2^-8 as large as what the code stands for; it may be subnormal.
#if defined(__AVX512F__)

inline Vec broadcast_pair(const float* p) {
  double pair;
  std::memcpy(&pair, p, sizeof(pair));
  return _mm512_castpd_ps(_mm512_set1_pd(pair));
}
inline void upcast_pairs(IVec high_bytes, Vec (&upcast)[2]) {
  const IVec halves =
      _mm512_and_si512(_mm512_srai_epi16(high_bytes, 1), _mm512_set1_epi16(static_cast<int16_t>(0xBF80)));
  upcast[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
  upcast[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
}
inline void upcast_float8(IVec bytes, Vec (&even)[2], Vec (&odd)[2]) {
  upcast_pairs(_mm512_slli_epi16(bytes, 8), even);
  upcast_pairs(bytes, odd);
}
// Sums of neighbours, of a and then of b.
inline Vec add_neighbours(Vec a, Vec b) {
  const IVec first = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const IVec second = _mm512_add_epi32(first, _mm512_set1_epi32(1));
  return add(_mm512_permutex2var_ps(a, first, b), _mm512_permutex2var_ps(a, second, b));
}

#elif defined(__AVX2__) && defined(__FMA__)

inline Vec broadcast_pair(const float* p) {
  double pair;
  std::memcpy(&pair, p, sizeof(pair));
  return _mm256_castpd_ps(_mm256_set1_pd(pair));
}
inline void upcast_pairs(IVec high_bytes, Vec (&upcast)[2]) {
  const IVec halves =
      _mm256_and_si256(_mm256_srai_epi16(high_bytes, 1), _mm256_set1_epi16(static_cast<int16_t>(0xBF80)));
  upcast[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
  upcast[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
}
inline void upcast_float8(IVec bytes, Vec (&even)[2], Vec (&odd)[2]) {
  upcast_pairs(_mm256_slli_epi16(bytes, 8), even);
  upcast_pairs(bytes, odd);
}
inline Vec add_neighbours(Vec a, Vec b) {
  const __m256d mixed = _mm256_castps_pd(_mm256_hadd_ps(a, b));  // 128 bits of a, of b, of a, of b: halves of each
  return _mm256_castpd_ps(_mm256_permute4x64_pd(mixed, 0xD8));
}

#elif defined(TM_NEON)

inline Vec broadcast_pair(const float* p) {
  const float32x2_t pair = vld1_f32(p);
  return vcombine_f32(pair, pair);
}
inline void upcast_pairs(IVec high_bytes, Vec (&upcast)[2]) {
  const int16x8_t shifted = vshrq_n_s16(vreinterpretq_s16_s32(high_bytes), 1);
  const float16x8_t halves = vreinterpretq_f16_s16(vandq_s16(shifted, vdupq_n_s16(static_cast<int16_t>(0xBF80))));
  upcast[0] = vcvt_f32_f16(vget_low_f16(halves));
  upcast[1] = vcvt_high_f32_f16(halves);
}
inline void upcast_float8(IVec bytes, Vec (&even)[2], Vec (&odd)[2]) {
  upcast_pairs(vreinterpretq_s32_s16(vshlq_n_s16(vreinterpretq_s16_s32(bytes), 8)), even);
  upcast_pairs(bytes, odd);
}
inline Vec add_neighbours(Vec a, Vec b) {
  return vpaddq_f32(a, b);
}

#else

inline Vec broadcast_pair(const float* p) {
  return map([=](int i) { return p[i % 2]; });
}
inline void upcast_float8(IVec bytes, Vec (&even)[2], Vec (&odd)[2]) {
  const auto upcast = [&](int output, int byte) {
    const auto value = static_cast<uint8_t>(static_cast<uint32_t>(bytes.lane[output]) >> 8 * byte);
    return to_float(half{static_cast<uint16_t>((value & 0x80u) << 8 | (value & 0x7Fu) << 7)});
  };
  for (int v = 0; v < 2; ++v) {
    even[v] = map([&](int i) { return upcast(2 * v + i / 2, i % 2 * 2); });
    odd[v] = map([&](int i) { return upcast(2 * v + i / 2, i % 2 * 2 + 1); });
  }
}
inline Vec add_neighbours(Vec a, Vec b) {
  return map([&](int i) { return i < 2 ? a.lane[2 * i] + a.lane[2 * i + 1] : b.lane[2 * i - 4] + b.lane[2 * i - 3]; });
}

#endif

class Float8Quads {
 public:
  using Input = float;
  static constexpr float kFactor = 256;

  static void store_quad(const float* x, Input* quad) {
    const float reordered[4] = {x[0], x[2], x[1], x[3]};
    std::memcpy(quad, reordered, sizeof(reordered));
  }

  void load(const uint8_t* quantized) { upcast_float8(load_bytes(quantized), even_, odd_); }

  void multiply_add(const Input* quad, QuadSums& sums) const {
    const Vec even = broadcast_pair(quad);
    const Vec odd = broadcast_pair(quad + 2);
    for (int i = 0; i < 2; ++i) sums.pair[i] = fma(even, even_[i], fma(odd, odd_[i], sums.pair[i]));
  }

  static Vec outputs_of(const QuadSums& sums) { return add_neighbours(sums.pair[0], sums.pair[1]); }

 private:
  Vec even_[2];  // bytes b0 and b2 of each output
  Vec odd_[2];   // bytes b1 and b3
};

#endif

}  // namespace turbomind::TM_ISA
