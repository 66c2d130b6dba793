#include "kernels/cuda/elementwise/norm.h"

#include "kernels/cuda/reduce.cuh"

namespace turbomind::cuda {

namespace {

// Rows (heads) of up to this many floats get a warp each, four to a block; longer ones a block of kBlockThreads.
constexpr int kWarpFloats = 1024;
constexpr int kWarpRows = 4;
constexpr int kBlockThreads = 512;

struct Rows {
  const float* x;
  float* y;
  size_t row_stride;
  size_t head_stride;
  int heads;
  int count;  // rows * heads
  int size;
};

// What a group of kThreads threads does with one row: reads it once or twice more from the first-level cache. Vector is
// float4 where all addresses and sizes allow it.
template <int kThreads, class Vector, class Visit>
__device__ __forceinline__ void for_each(const float* x, int size, int thread, Visit&& visit) {
  constexpr int kWidth = sizeof(Vector) / sizeof(float);
#pragma unroll 4
  for (int i = thread * kWidth; i < size; i += kThreads * kWidth) {
    const Vector vector = *reinterpret_cast<const Vector*>(x + i);
    visit(i, reinterpret_cast<const float*>(&vector));
  }
}

template <int kThreads>
__device__ __forceinline__ float group_sum(float value) {
  if constexpr (kThreads == kWarp) return warp_sum(value);
  return block_sum<kThreads>(value);
}

template <int kThreads, class Vector>
__global__ void __launch_bounds__(kThreads == kWarp ? kWarp * kWarpRows : kThreads)
    norm_kernel(NormWeight norm, Rows rows) {
  constexpr int kWidth = sizeof(Vector) / sizeof(float);
  const bool is_warp = kThreads == kWarp;
  const int index = is_warp ? blockIdx.x * kWarpRows + threadIdx.x / kWarp : blockIdx.x;
  if (index >= rows.count) return;  // whole warps, and no barrier where warps have rows
  const int thread = is_warp ? threadIdx.x % kWarp : threadIdx.x;
  const size_t offset = index / rows.heads * rows.row_stride + index % rows.heads * rows.head_stride;
  const float* x = rows.x + offset;
  float* y = rows.y + offset;
  const auto size = static_cast<float>(rows.size);

  float mean = 0;
  if (norm.kind == NormKind::kLayer) {
    float sum = 0;
    for_each<kThreads, Vector>(x, rows.size, thread, [&](int, const float* v) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum += v[j];
    });
    mean = group_sum<kThreads>(sum) / size;
  }
  float squares = 0;
  for_each<kThreads, Vector>(x, rows.size, thread, [&](int, const float* v) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) squares += (v[j] - mean) * (v[j] - mean);
  });
  const float factor = 1.0f / sqrtf(group_sum<kThreads>(squares) / size + norm.eps);
  for_each<kThreads, Vector>(x, rows.size, thread, [&](int i, const float* v) {
    const Vector scale = *reinterpret_cast<const Vector*>(norm.weight + i);
    const auto* scales = reinterpret_cast<const float*>(&scale);
    Vector out;
    auto* values = reinterpret_cast<float*>(&out);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      values[j] = (v[j] - mean) * factor * scales[j];
      if (norm.bias != nullptr) values[j] += norm.bias[i + j];
    }
    *reinterpret_cast<Vector*>(y + i) = out;
  });
}

bool is_aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % sizeof(float4) == 0;
}

template <class Vector>
void launch_norm(cudaStream_t stream, const NormWeight& weight, const Rows& rows) {
  if (rows.size <= kWarpFloats) {
    launch(norm_kernel<kWarp, Vector>, dim3(divide_up(rows.count, kWarpRows)), dim3(kWarp * kWarpRows), 0, stream,
           weight, rows);
  } else {
    launch(norm_kernel<kBlockThreads, Vector>, dim3(rows.count), dim3(kBlockThreads), 0, stream, weight, rows);
  }
}

void norm_rows(cudaStream_t stream, const NormWeight& weight, const Rows& rows) {
  if (rows.count == 0) return;
  const bool is_vector = rows.size % 4 == 0 && rows.row_stride % 4 == 0 && rows.head_stride % 4 == 0 &&
                         is_aligned(rows.x) && is_aligned(rows.y) && is_aligned(weight.weight);
  (is_vector ? launch_norm<float4> : launch_norm<float>)(stream, weight, rows);
}

}  // namespace

void norm(cudaStream_t stream, const NormWeight& weight, const float* x, int rows, int size, float* y) {
  norm_rows(stream, weight, {x, y, static_cast<size_t>(size), 0, 1, rows, size});
}

void norm_heads(cudaStream_t stream, const NormWeight& weight, const HeadsView& heads) {
  norm_rows(stream, weight,
            {heads.first, heads.first, heads.row_stride, heads.head_stride, heads.heads, heads.rows * heads.heads,
             heads.head_dim});
}

}  // namespace turbomind::cuda
