// Thread block of the reference GEMM: it computes 32 rows of 32 outputs, a thread 2 x 2 of them. 32 inputs of each pass
// through shared memory at once.
#pragma once

#include <type_traits>

#include "kernels/cuda/linear/gemm.h"
#include "kernels/cuda/linear/weight_slab.cuh"
#include "kernels/cuda/quantize/float8_blocks.cuh"
#include "kernels/cuda/upcast.cuh"

namespace turbomind::cuda::reference {

inline constexpr int kSide = 32;
inline constexpr int kThreadSide = 16;
inline constexpr int kThreads = kThreadSide * kThreadSide;
inline constexpr int kSideOfThread = kSide / kThreadSide;
static_assert(kFloat8Block % kSide == 0);

template <class T>
__device__ __forceinline__ float number_of(T value) {
  return upcast(value);
}
__device__ __forceinline__ int number_of(int8_t value) {
  return value;
}
__device__ __forceinline__ float number_of(float8 value) {
  if ((value.bits & 0x7F) == 0x7F) return __uint_as_float(0x7FC00000u);  // not a number
  const auto bits = static_cast<unsigned short>((value.bits & 0x80) << 8 | (value.bits & 0x7F) << 7);
  return __half2float(__ushort_as_half(bits)) * kFloat8Range;
}

__device__ __forceinline__ void write(float& y, float value, bool accumulates) {
  y = accumulates ? y + value : value;
}
__device__ __forceinline__ void write(int32_t& y, int32_t value, bool) {
  y = value;
}
__device__ __forceinline__ void write(__nv_bfloat16& y, float value, bool) {
  y = __float2bfloat16_rn(value);
}
__device__ __forceinline__ void write(__half& y, float value, bool) {
  y = __float2half_rn(value);
}

template <class T, class Sum, class Result>
__device__ void make_block(const GemmCall& call) {
  __shared__ Sum x[kSide][kSide + 1];
  __shared__ Sum w[kSide][kSide + 1];
  const int first_row = blockIdx.x * kSide;
  const int first_output = blockIdx.y * kSide;
  const int thread_row = threadIdx.x / kThreadSide;
  const int thread_output = threadIdx.x % kThreadSide;
  const auto load = [&](const void* from, int first, int count, int input, Sum(*to)[kSide + 1]) {
    for (int i = threadIdx.x; i < kSide * kSide; i += kThreads) {
      const int line = i / kSide;
      const int column = input + i % kSide;
      const bool is_there = first + line < count && column < call.inputs;
      const size_t offset = static_cast<size_t>(first + line) * call.inputs + column;
      to[line][i % kSide] = is_there ? static_cast<Sum>(number_of(static_cast<const T*>(from)[offset])) : Sum{0};
    }
  };
  // Of a float8's scale, what a sum of these inputs is multiplied with.
  const auto scale_of = [&](int r, int o, int input) {
    const int row = min(first_row + thread_row + r * kThreadSide, call.rows - 1);
    const int output = min(first_output + thread_output + o * kThreadSide, call.outputs - 1);
    const size_t block = call.scales == GemmScales::kBlocks ? input / kFloat8Block : 0;
    return call.x_scales[block * call.rows + row] * call.w_scales[block * call.outputs + output];
  };
  Sum sums[kSideOfThread][kSideOfThread] = {};
  Sum part[kSideOfThread][kSideOfThread] = {};
  for (int input = 0; input < call.inputs; input += kSide) {
    load(call.x, first_row, call.rows, input, x);
    load(call.w, first_output, call.outputs, input, w);
    __syncthreads();
    for (int i = 0; i < kSide; ++i) {
#pragma unroll
      for (int r = 0; r < kSideOfThread; ++r) {
#pragma unroll
        for (int o = 0; o < kSideOfThread; ++o) {
          part[r][o] += x[thread_row + r * kThreadSide][i] * w[thread_output + o * kThreadSide][i];
        }
      }
    }
    __syncthreads();
    const int end = input + kSide;
    const bool ends_scale = call.scales == GemmScales::kBlocks && end % kFloat8Block == 0;
    if (!ends_scale && end < call.inputs) continue;
#pragma unroll
    for (int r = 0; r < kSideOfThread; ++r) {
#pragma unroll
      for (int o = 0; o < kSideOfThread; ++o) {
        if constexpr (std::is_same_v<T, float8>) {
          if (call.scales != GemmScales::kNone) part[r][o] *= scale_of(r, o, input);
        }
        sums[r][o] += part[r][o];
        part[r][o] = 0;
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kSideOfThread; ++r) {
#pragma unroll
    for (int o = 0; o < kSideOfThread; ++o) {
      const int row = first_row + thread_row + r * kThreadSide;
      const int output = first_output + thread_output + o * kThreadSide;
      if (row >= call.rows || output >= call.outputs) continue;
      Sum value = sums[r][o];
      if constexpr (std::is_same_v<Sum, float>) value *= call.alpha;
      write(static_cast<Result*>(call.y)[row * call.y_stride + output], value, call.accumulates);
    }
  }
}

}  // namespace turbomind::cuda::reference
