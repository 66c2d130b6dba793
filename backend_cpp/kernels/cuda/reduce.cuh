// Sums over a group of threads: a warp, or a whole block along x; and the last of several blocks, which adds theirs up.
#pragma once

#include "kernels/cuda/device.h"

namespace turbomind::cuda {

// Whether this block is the last of `count` to call this with a counter, which is 0 before and after. All its threads
// call it; what the other blocks wrote before is then visible.
__device__ inline bool is_last_block(int32_t* counter, int count) {
  __shared__ int before;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    before = atomicAdd(counter, 1);
    if (before == count - 1) *counter = 0;
  }
  __syncthreads();
  __threadfence();
  return before == count - 1;
}

// Each lane gets the sum.
template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

__device__ __forceinline__ float larger(float a, float b) {
  return fmaxf(a, b);
}
__device__ __forceinline__ uint64_t larger(uint64_t a, uint64_t b) {
  return max(a, b);
}

template <class T>
__device__ __forceinline__ T warp_max(T value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value = larger(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

// Each thread gets combine of what all threads' warps found. Every thread of the block calls it; kThreads is their
// number.
template <int kThreads, class T, class Combine>
__device__ T combine_warps(T of_warp, T start, Combine&& combine) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ T partial[kWarps];
  if constexpr (kWarps == 1) return of_warp;
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  T result = start;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) result = combine(result, partial[w]);
  __syncthreads();  // the next call writes again
  return result;
}

template <int kThreads, class T>
__device__ T block_sum(T value) {
  return combine_warps<kThreads>(warp_sum(value), T{0}, [](T a, T b) { return a + b; });
}

// Of values that are not negative.
template <int kThreads, class T>
__device__ T block_max(T value) {
  return combine_warps<kThreads>(warp_max(value), T{0}, [](T a, T b) { return larger(a, b); });
}

}  // namespace turbomind::cuda
