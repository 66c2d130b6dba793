// A matrix of as many vectors as these have lanes, transposed in registers. Included by kernels_isa.cc only.
#pragma once

#include "kernels/cpu/simd.h"

#if defined(__AVX2__)

namespace turbomind::TM_ISA {

#if defined(__AVX512F__)

inline void transpose(Vec (&rows)[16]) {
  Vec pairs[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
  }
  Vec quads[16];
  for (int i = 0; i < 16; i += 4) {
    quads[i] = _mm512_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    quads[i + 1] = _mm512_shuffle_ps(pairs[i], pairs[i + 2], 0xEE);
    quads[i + 2] = _mm512_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    quads[i + 3] = _mm512_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xEE);
  }
  // quads[4 g + c]: columns c, 4 + c, 8 + c, 12 + c of rows 4 g to 4 g + 3
  for (int c = 0; c < 4; ++c) {
    const Vec low = _mm512_shuffle_f32x4(quads[c], quads[4 + c], 0x88);
    const Vec high = _mm512_shuffle_f32x4(quads[8 + c], quads[12 + c], 0x88);
    rows[c] = _mm512_shuffle_f32x4(low, high, 0x88);
    rows[8 + c] = _mm512_shuffle_f32x4(low, high, 0xDD);
    const Vec odd_low = _mm512_shuffle_f32x4(quads[c], quads[4 + c], 0xDD);
    const Vec odd_high = _mm512_shuffle_f32x4(quads[8 + c], quads[12 + c], 0xDD);
    rows[4 + c] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
    rows[12 + c] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xDD);
  }
}

#else

inline void transpose(Vec (&rows)[8]) {
  Vec quads[8];
  for (int i = 0; i < 8; i += 4) {
    const Vec low = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    const Vec high = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    const Vec next_low = _mm256_unpacklo_ps(rows[i + 2], rows[i + 3]);
    const Vec next_high = _mm256_unpackhi_ps(rows[i + 2], rows[i + 3]);
    quads[i] = _mm256_shuffle_ps(low, next_low, 0x44);
    quads[i + 1] = _mm256_shuffle_ps(low, next_low, 0xEE);
    quads[i + 2] = _mm256_shuffle_ps(high, next_high, 0x44);
    quads[i + 3] = _mm256_shuffle_ps(high, next_high, 0xEE);
  }
  // quads[4 g + c]: columns c, 4 + c of rows 4 g to 4 g + 3
  for (int c = 0; c < 4; ++c) {
    rows[c] = _mm256_permute2f128_ps(quads[c], quads[4 + c], 0x20);
    rows[4 + c] = _mm256_permute2f128_ps(quads[c], quads[4 + c], 0x31);
  }
}

#endif

}  // namespace turbomind::TM_ISA

#endif
