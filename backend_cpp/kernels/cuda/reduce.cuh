// Sums over a group of threads: a warp, or a whole block along x.
#pragma once

#include "kernels/cuda/device.h"

namespace turbomind::cuda {

// Each lane gets the sum.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

// Each thread gets the sum. Every thread of the block calls it; kThreads is their number.
template <int kThreads>
__device__ float block_sum(float value) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ float partial[kWarps];
  value = warp_sum(value);
  if constexpr (kWarps == 1) return value;
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = value;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += partial[w];
  __syncthreads();  // the next call writes again
  return sum;
}

}  // namespace turbomind::cuda
