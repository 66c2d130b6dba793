// One step of a team of ring_kernel.cuh.
#pragma once

#include "kernels/cuda/ring/ring_copies.cuh"

namespace turbomind::cuda {

// Scales and zero points of a thread's two outputs for a step.
template <WeightFormat kFormat>
struct StepConstants {
  float scales[2];
  uint32_t half_scales;
  uint32_t low[2];   // 1024 + zero, twice
  uint32_t high[2];  // -(64 + zero), twice

  template <class Ring>
  __device__ __forceinline__ void load(const std::byte* from, int pair) {
    if constexpr (kHasZeros<kFormat>) {
      half_scales = *reinterpret_cast<const uint32_t*>(from + pair * 4);
      const uint32_t zeros = *reinterpret_cast<const uint16_t*>(from + Ring::kScaleBytes + pair * 2);
      const float2 both = __half22float2(bits_as<__half2>(half_scales));
      scales[0] = both.x, scales[1] = both.y;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        low[i] = __byte_perm(zeros, 0x64646464u, 0x4040u + i * 0x0101u);
        constexpr uint32_t k960 = 0x63806380;
        high[i] = bits_as<uint32_t>(__hsub2(bits_as<__half2>(k960), bits_as<__half2>(low[i])));
      }
    } else {
      const float2 both = *reinterpret_cast<const float2*>(from + pair * 8);
      scales[0] = both.x, scales[1] = both.y;
    }
  }
};

// The operands of a slab: two steps of 16 inputs. words: of int4 of both outputs, of 8 bits of each.
template <class Ring>
__device__ __forceinline__ void dequantize_slab(const StepConstants<Ring::kFormat>& constants,
                                                const uint2 (&words)[Ring::kTileBytes / 1024], uint32_t (&a)[2][4]) {
  constexpr WeightFormat kFormat = Ring::kFormat;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint32_t pairs[4];
    if constexpr (kFormat == WeightFormat::kInt4) {
      dequantize_int4(i == 0 ? words[0].x : words[0].y, constants.low[i], constants.high[i], pairs);
    } else {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const uint32_t word = step == 0 ? words[i].x : words[i].y;
        if constexpr (kFormat == WeightFormat::kInt8) {
          dequantize_int8(word ^ 0x80808080u, constants.low[i], pairs + 2 * step);
        } else {
          upcast_float8(word, pairs + 2 * step);
        }
      }
    }
    if constexpr (!Ring::kScalesSums && kHasZeros<kFormat>) {
      const auto scale = bits_as<__half2>(__byte_perm(constants.half_scales, 0u, i == 0 ? 0x1010 : 0x3232));
#pragma unroll
      for (uint32_t& pair : pairs) pair = bits_as<uint32_t>(__hmul2(bits_as<__half2>(pair), scale));
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) a[j / 2][i + j % 2 * 2] = pairs[j];
  }
}

// Adds a step of a team to its sums.
template <class Ring>
__device__ __forceinline__ void multiply_step(const std::byte* stage, const std::byte* x, int lane,
                                              float (&totals)[Ring::kSums]) {
  constexpr int kSlabs = kRingUnit / 32;
  constexpr int kLoads = Ring::kTileBytes / 1024;
  const int quarter = lane % 4;  // which has a chunk of eight inputs of each slab
  const int pair = lane / 4;     // of outputs
  const std::byte* quantized =
      stage + (Ring::kHasRows ? 2 * pair * Ring::kRowBytes + quarter * 8 : quarter * 64 + pair * 8);
  uint2 words[kSlabs][kLoads];
#pragma unroll
  for (int slab = 0; slab < kSlabs; ++slab) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int offset = Ring::kHasRows ? slab * 32 + i * Ring::kRowBytes : slab * 256;
      words[slab][i] = *reinterpret_cast<const uint2*>(quantized + offset);
    }
  }
  StepConstants<Ring::kFormat> constants;
  constants.template load<Ring>(stage + Ring::kTileBytes, pair);
  const auto rows = k_rows<Ring::kColumns>(x);
  float sums[Ring::kSums];
  uint32_t a[kSlabs][2][4];
#pragma unroll
  for (int slab = 0; slab < kSlabs; ++slab) {
    dequantize_slab<Ring>(constants, words[slab], a[slab]);
    if constexpr (Ring::kScalesSums) {
      if (slab == 0) keep_in_registers(sums);
    } else {
      if (slab == 0) keep_in_registers(totals);
    }
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const auto b = k_rows_after<Ring::kColumns>(rows, 2 * (slab * 2 + step));
      if constexpr (Ring::kScalesSums) {
        wgmma_f16<Ring::kColumns>(sums, a[slab][step], b, slab + step > 0);
      } else {
        wgmma_f16<Ring::kColumns>(totals, a[slab][step], b, true);
      }
    }
    wgmma_commit();
    if constexpr (Ring::kIsTight) wgmma_wait<1>();
  }
  wgmma_wait<0>();
  if constexpr (Ring::kScalesSums) {
    keep_in_registers(sums);
#pragma unroll
    for (int i = 0; i < Ring::kSums; ++i) totals[i] = fmaf(constants.scales[i / 2 % 2], sums[i], totals[i]);
  } else {
    keep_in_registers(totals);
  }
}

}  // namespace turbomind::cuda
