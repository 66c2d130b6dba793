// Rows rounded to bfloat16. Included by kernels_isa.cc only.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/cpu/simd.h"

namespace turbomind::TM_ISA {

// The nearest bfloat16 of 16 floats, ties to even; NaN stays NaN.
inline __m256i to_bf16s(Vec v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i last_bit = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i nearest = _mm512_add_epi32(bits, _mm512_add_epi32(last_bit, _mm512_set1_epi32(0x7FFF)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(nearest, is_nan, quiet), 16));
}

inline IVec to_bf16s(Vec low, Vec high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(to_bf16s(low)), to_bf16s(high), 1);
}

inline void round_to_bf16(const float* x, int count, bf16* rounded) {
  for (int i = 0; i < count; i += kLanes) {
    const bool is_whole = i + kLanes <= count;
    const __m256i values = to_bf16s(is_whole ? load(x + i) : load_partial(x + i, count - i));
    std::memcpy(rounded + i, &values, is_whole ? sizeof(values) : static_cast<size_t>(count - i) * sizeof(bf16));
  }
}

}  // namespace turbomind::TM_ISA
