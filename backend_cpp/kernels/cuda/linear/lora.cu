#include "kernels/lora.h"

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/upcast.cuh"

// Shrinking: a warp has one number of one row; blockIdx.x is the row. Expanding: a thread has one output of one row.
// Each row reads its adapter by itself, from the caches where rows share one: while decoding, the bytes of the rows'
// adapters must move, rank (in + out) numbers a layer. Which rows have one is read from device memory.

namespace turbomind {

using namespace cuda;

namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 256;

__device__ __forceinline__ const LoraWeight* weight_of(const LoraRows& rows, int row) {
  const LoraWeight* adapter = rows.adapters[row];
  return adapter == nullptr ? nullptr : adapter + rows.layer;
}

template <class T>
__device__ __forceinline__ float dot(const void* matrix, int index, const float* x, int count) {
  const T* w = static_cast<const T*>(matrix) + static_cast<size_t>(index) * count;
  float sum = 0;
#pragma unroll 4
  for (int i = threadIdx.x % kWarp; i < count; i += kWarp) sum = fmaf(upcast(w[i]), x[i], sum);
  return warp_sum(sum);
}

__global__ void __launch_bounds__(kWarps* kWarp) shrink_kernel(LoraShrink op) {
  await_previous();
  const int row = blockIdx.x;
  const int index = blockIdx.y * kWarps + threadIdx.x / kWarp;
  const LoraWeight* weight = weight_of(op.rows, row);
  if (weight == nullptr || index >= weight->rank) return;
  const float* row_x = op.x + static_cast<size_t>(row) * op.in_features;
  const float sum = weight->format == WeightFormat::kFloat32   ? dot<float>(weight->down, index, row_x, op.in_features)
                    : weight->format == WeightFormat::kFloat16 ? dot<half>(weight->down, index, row_x, op.in_features)
                                                               : dot<bf16>(weight->down, index, row_x, op.in_features);
  if (threadIdx.x % kWarp == 0) op.shrunk[static_cast<size_t>(row) * op.rows.max_rank + index] = sum;
}

template <class T>
__device__ __forceinline__ float expanded(const LoraPart& part, int output, const float* shrunk) {
  const T* up = static_cast<const T*>(part.up) + output;
  float sum = 0;
  for (int k = 0; k < part.rank; ++k)
    sum = fmaf(shrunk[k], upcast(up[static_cast<size_t>(k) * part.out_features]), sum);
  return part.scale * sum;
}

__global__ void __launch_bounds__(kThreads) expand_kernel(LoraExpand op) {
  await_previous();
  const int row = blockIdx.x;
  const int output = blockIdx.y * kThreads + threadIdx.x;
  const LoraWeight* weight = weight_of(op.rows, row);
  if (weight == nullptr || weight->rank == 0 || output >= op.out_features) return;
  const float* shrunk_row = op.shrunk + static_cast<size_t>(row) * op.rows.max_rank;
  float& to = op.y[static_cast<size_t>(row) * op.out_features + output];
  for (int i = 0; i < weight->part_count; ++i) {
    const LoraPart part = weight->parts[i];
    const int at = output - part.first_out;
    if (at < 0 || at >= part.out_features) continue;
    const float* numbers = shrunk_row + part.first_rank;
    to += weight->format == WeightFormat::kFloat32   ? expanded<float>(part, at, numbers)
          : weight->format == WeightFormat::kFloat16 ? expanded<half>(part, at, numbers)
                                                     : expanded<bf16>(part, at, numbers);
  }
}

}  // namespace

void LoraShrink::run(CudaStream stream) const {
  if (rows.rows == 0 || rows.max_rank == 0) return;
  launch(shrink_kernel, rows_and(rows.rows, divide_up(rows.max_rank, kWarps)), dim3(kWarps * kWarp), 0, stream, *this);
}

void LoraExpand::run(CudaStream stream) const {
  if (rows.rows == 0 || rows.max_rank == 0) return;
  launch(expand_kernel, rows_and(rows.rows, divide_up(out_features, kThreads)), dim3(kThreads), 0, stream, *this);
}

}  // namespace turbomind
