// Sums of codes times activations, before scales and zero points act on them: for few rows, where every instruction for
// a byte of the weight counts.
//
//   sum of scale (code - zero) x = scale (sum of code x - zero sum of x)
//
// over the inputs that share a scale and a zero point. Codes go to the matrix instruction as the subnormal numbers of
// half precision that they are behind a mask: code 2^-24, or code 2^-20 of the upper half of a byte of int4. Tensor
// cores multiply those exactly (Fasi, Higham, Mikaitis and Pranesh, 2021, PeerJ Computer Science 7:e330). The sum of x
// is a product with ones, in the same unit. float8 has no zero points, and is widened as weight_slab.cuh says.
#pragma once

#include "kernels/cuda/linear/weight_slab.cuh"

namespace turbomind::cuda {

// Factor of sums of codes.
inline float max_quantized_of(WeightFormat format) {
  constexpr float kSubnormal = 16777216.0f;
  return format == WeightFormat::kFloat8 ? range_of(format) : kHalfRange * kSubnormal;
}

// The codes of a tile of a slab as operands, [step]. Of int4 step 0 has the inputs 0 .. 3 of a chunk, and step 1 the
// others 16 times too large; of the rest step 0 has 0, 1, 4, 5.
template <WeightFormat kFormat>
__device__ __forceinline__ void mask_quantized(const uint4 (&loads)[SlabFormat<kFormat>::kLoads], int tile,
                                               uint32_t (&steps)[2][4]) {
  const auto word = [&](int load, int i) {
    return i == 0 ? loads[load].x : i == 1 ? loads[load].y : i == 2 ? loads[load].z : loads[load].w;
  };
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int output = 2 * tile + i;
    uint32_t pairs[4];
    if constexpr (kFormat == WeightFormat::kInt4) {
      const uint32_t quantized = word(0, output);
      pairs[0] = quantized & 0x000F000Fu;
      pairs[1] = quantized >> 8 & 0x000F000Fu;
      pairs[2] = quantized & 0x00F000F0u;
      pairs[3] = quantized >> 8 & 0x00F000F0u;
    } else if constexpr (kFormat == WeightFormat::kInt8) {
#pragma unroll
      for (int load = 0; load < 2; ++load) {
        pairs[2 * load] = __byte_perm(word(load, output), 0u, 0x4140);
        pairs[2 * load + 1] = __byte_perm(word(load, output), 0u, 0x4342);
      }
    } else {
      upcast_float8(word(0, output), pairs);
      upcast_float8(word(1, output), pairs + 2);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) steps[j / 2][i + j % 2 * 2] = pairs[j];
  }
}

// Eight activations as the operand that fits mask_quantized: words x and y are step 0.
template <WeightFormat kFormat>
__device__ __forceinline__ uint4 quantized_chunk(const float (&x)[kChunk]) {
  const uint4 rounded = round_chunk<kFormat>(x);
  // Of int4 0 2, 4 6, 1 3, 5 7.
  return kFormat == WeightFormat::kInt4 ? make_uint4(rounded.x, rounded.z, rounded.y, rounded.w) : rounded;
}

// Adds the activations themselves, in the unit of codes. x_sums[n][c]: of row 8 n + 2 t + c. Of the four words that the
// instruction leaves, all equal in pairs, two are kept, which saves registers, or four, which saves instructions.
template <int kRowTiles, int kKept>
__device__ __forceinline__ void add_inputs(const uint4 (&x)[kRowTiles], float (&x_sums)[kRowTiles][kKept]) {
  constexpr uint32_t kOnes[4] = {0x00010001, 0x00010001, 0x00010001, 0x00010001};
#pragma unroll
  for (int n = 0; n < kRowTiles; ++n) {
    const uint32_t steps[2][2] = {{x[n].x, x[n].y}, {x[n].z, x[n].w}};
    float sums[4] = {};
#pragma unroll
    for (int i = 0; i < kKept; ++i) sums[i] = x_sums[n][i];
    mma_f16(sums, kOnes, steps[0]);
    mma_f16(sums, kOnes, steps[1]);
#pragma unroll
    for (int i = 0; i < kKept; ++i) x_sums[n][i] = sums[i];
  }
}

// The sums of a stripe for rows 8 n .. 8 n + 7: of a group while it lasts, and of all groups before.
template <WeightFormat kFormat, int kRowTiles>
class QuantizedSums {
  // The steps of int4, whose units differ, have sums of their own; with more rows that takes too many registers.
  static constexpr bool kSplitsSteps = kFormat == WeightFormat::kInt4 && kRowTiles == 1;

 public:
  // [n][i][c]: output 4 g + i of the stripe, row 8 n + 2 t + c
  float totals[kRowTiles][4][2] = {};

  __device__ __forceinline__ void add(const uint4 (&loads)[SlabFormat<kFormat>::kLoads], const uint4 (&x)[kRowTiles]) {
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      uint32_t quantized[2][4];
      mask_quantized<kFormat>(loads, tile, quantized);
      if constexpr (kFormat == WeightFormat::kInt4 && !kSplitsSteps) {
        constexpr uint32_t kSixteenth = 0x2C002C00;
#pragma unroll
        for (uint32_t& pair : quantized[1]) {
          pair = bits_as<uint32_t>(__hmul2(bits_as<__half2>(pair), bits_as<__half2>(kSixteenth)));
        }
      }
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) {
        const uint32_t steps[2][2] = {{x[n].x, x[n].y}, {x[n].z, x[n].w}};
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          mma_f16(group_[n][tile][kSplitsSteps ? step : 0], quantized[step], steps[step]);
        }
      }
    }
  }

  // Ends a group. x_sums as add_inputs leaves them.
  template <int kKept>
  __device__ __forceinline__ void fold(const GroupConstants<kFormat>& constants,
                                       const float (&x_sums)[kRowTiles][kKept]) {
    float scales[4];
    constants.scales_of(scales);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float zero = kHasZeros<kFormat> ? static_cast<float>(constants.zeros >> 8 * i & 255) : 0.0f;
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int at = i % 2 * 2 + c;
          float sum = group_[n][i / 2][0][at];
          if constexpr (kSplitsSteps) sum = fmaf(group_[n][i / 2][1][at], 0.0625f, sum);
          if constexpr (kHasZeros<kFormat>) sum = fmaf(-zero, x_sums[n][c], sum);
          totals[n][i][c] = fmaf(scales[i], sum, totals[n][i][c]);
        }
      }
    }
#pragma unroll
    for (auto& of_rows : group_) {
#pragma unroll
      for (auto& of_tile : of_rows) {
#pragma unroll
        for (auto& of_step : of_tile) {
#pragma unroll
          for (float& sum : of_step) sum = 0;
        }
      }
    }
  }

 private:
  float group_[kRowTiles][2][kSplitsSteps ? 2 : 1][4] = {};  // as mma leaves it
};

}  // namespace turbomind::cuda
