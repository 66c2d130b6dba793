// float8 with a scale for each row and 128 inputs, as libraries' products take it on both sides.
#pragma once

#include "kernels/cuda/reduce.cuh"
#include "kernels/packed_weight.h"

namespace turbomind::cuda {

inline constexpr int kFloat8Block = 128;  // inputs that share a scale
inline constexpr int kBlockWords = kFloat8Block / kWarp;
static_assert(kBlockWords == sizeof(uint32_t));

// Scales from this on have an inverse.
inline constexpr float kMinScale = 1e-37f;

__device__ __forceinline__ float inverse_of(float scale) {
  return scale > kMinScale ? 1.0f / scale : 0.0f;
}

// 128 inputs of a row, of which each lane of a warp has four.
struct QuantizedBlock {
  uint32_t word;  // the lane's codes
  float scale;

  // To the warp's 128 codes, and, by the first lane, the scale.
  __device__ __forceinline__ void write(uint8_t* quantized, float* scale_to) const {
    const int lane = threadIdx.x % kWarp;
    reinterpret_cast<uint32_t*>(quantized)[lane] = word;
    if (lane == 0) *scale_to = scale;
  }
};

// By a whole warp.
__device__ __forceinline__ QuantizedBlock round_block(const float (&values)[kBlockWords]) {
  float top = 0;
  float probe = 0;  // NaN and infinity must not vanish: they make the scale not a number
#pragma unroll
  for (int i = 0; i < kBlockWords; ++i) {
    top = fmaxf(top, fabsf(values[i]));
    probe += values[i] * 0.0f;
  }
  const float scale = warp_max(top) / kLargestFloat8 + warp_sum(probe);
  const float inverse = inverse_of(scale);
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < kBlockWords; ++i) {
    const uint32_t q = __nv_cvt_float_to_fp8(values[i] * inverse, __NV_SATFINITE, __NV_E4M3);
    word |= q << 8 * i;
  }
  return {word, scale};
}

// Scale of an output's codes in one of its `blocks`.
__device__ __forceinline__ float float8_scale(const LinearWeight& weight, int output, int block, int blocks) {
  const float scale = weight.output_scales[output];
  if (weight.block_scales == nullptr) return scale;
  const size_t entry = static_cast<size_t>(output / kTileOutputs) * blocks + block;
  return weight.block_scales[entry * kTileOutputs + output % kTileOutputs] * scale;
}

}  // namespace turbomind::cuda
