// The norm of a row that a group of threads shares, in kernels; as kernels/norm.h says.
#pragma once

#include "kernels/cuda/reduce.cuh"
#include "kernels/norm.h"

namespace turbomind::cuda {

// Rows (heads) of up to this many floats get a warp each, four to a block; longer ones a block of kNormThreads.
inline constexpr int kWarpFloats = 1024;
inline constexpr int kNormThreads = 512;

// kThreads threads that share a row: a warp, or the whole block.
template <int kThreads>
struct RowGroup {
  static constexpr bool kIsWarp = kThreads == kWarp;
  static constexpr int kRows = kIsWarp ? 4 : 1;  // of a block
  static constexpr int kBlock = kThreads * kRows;

  static __device__ __forceinline__ int row() { return blockIdx.x * kRows + (kIsWarp ? threadIdx.x / kWarp : 0); }
  static __device__ __forceinline__ int thread() { return kIsWarp ? threadIdx.x % kWarp : threadIdx.x; }
  static __device__ __forceinline__ float sum(float value) {
    if constexpr (kIsWarp) return warp_sum(value);
    return block_sum<kThreads>(value);
  }
};

// Reads a row from memory or, once more, from the first-level cache. Vector is float4 where all addresses and sizes
// allow it.
template <int kThreads, class Vector, class Visit>
__device__ __forceinline__ void for_each(const float* x, int size, Visit&& visit) {
  constexpr int kWidth = sizeof(Vector) / sizeof(float);
#pragma unroll 4
  for (int i = RowGroup<kThreads>::thread() * kWidth; i < size; i += kThreads * kWidth) {
    const Vector vector = *reinterpret_cast<const Vector*>(x + i);
    visit(i, reinterpret_cast<const float*>(&vector));
  }
}

struct RowNorm {
  float mean;
  float factor;

  // Of an element of the row. bias: null where the norm has none.
  __device__ __forceinline__ float operator()(float x, float scale, const float* bias) const {
    const float value = (x - mean) * factor * scale;
    return bias != nullptr ? value + *bias : value;
  }
};

// All threads of the group call it.
template <int kThreads, class Vector>
__device__ __forceinline__ RowNorm norm_of_row(const NormWeight& norm, const float* x, int row_size) {
  constexpr int kWidth = sizeof(Vector) / sizeof(float);
  const auto size = static_cast<float>(row_size);
  float mean = 0;
  if (norm.kind == NormKind::kLayer) {
    float sum = 0;
    for_each<kThreads, Vector>(x, row_size, [&](int, const float* v) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum += v[j];
    });
    mean = RowGroup<kThreads>::sum(sum) / size;
  }
  float squares = 0;
  for_each<kThreads, Vector>(x, row_size, [&](int, const float* v) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) squares += (v[j] - mean) * (v[j] - mean);
  });
  return {mean, 1.0f / sqrtf(RowGroup<kThreads>::sum(squares) / size + norm.eps)};
}

inline bool is_float4(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % sizeof(float4) == 0;
}

}  // namespace turbomind::cuda
