#include "kernels/cuda/elementwise/elementwise.h"

#include "kernels/cuda/elementwise/row_norm.cuh"

namespace turbomind::cuda {

namespace {

constexpr int kThreads = 256;
using Group = RowGroup<kNormThreads>;

__global__ void __launch_bounds__(kThreads)
    mix_kernel(StreamShape shape, const float* factors, const float* x, float* y) {
  await_previous();
  const size_t stream = static_cast<size_t>(shape.rows) * shape.size;
  const size_t index = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= stream) return;
  const float* own = factors + index / shape.size * shape.count * shape.count;
  for (int i = 0; i < shape.count; ++i) {
    float sum = x[i * stream + index];
    for (int k = 0; k < shape.count; ++k) sum += own[i * shape.count + k] * x[k * stream + index];
    y[i * stream + index] = sum;
  }
}

__global__ void __launch_bounds__(kThreads)
    correct_kernel(StreamShape shape, int active, const float* factors, const float* made, float* x) {
  await_previous();
  const size_t stream = static_cast<size_t>(shape.rows) * shape.size;
  const size_t index = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= stream) return;
  const float* own = factors + index / shape.size * shape.count;
  const float change = made[index] - x[active * stream + index];
  for (int i = 0; i < shape.count; ++i) x[i * stream + index] += (1.0f + own[i]) * change;
}

__device__ float row_mean_square(const float* x, int size, float mean) {
  float sum = 0;
  for_each<kNormThreads, float>(x, size, [&](int, const float* v) { sum += (*v - mean) * (*v - mean); });
  return Group::sum(sum) / static_cast<float>(size);
}

__global__ void __launch_bounds__(Group::kBlock) match_kernel(const float* like, int size, float* x) {
  await_previous();
  const size_t offset = static_cast<size_t>(Group::row()) * size;
  const float wanted = sqrtf(row_mean_square(like + offset, size, 0));
  const float found = row_mean_square(x + offset, size, 0);
  const float factor = wanted / sqrtf(found < 1e-5f ? 1e-5f : found);
  float* own = x + offset;
  for_each<kNormThreads, float>(own, size, [&](int i, const float* v) { own[i] = *v * factor; });
}

__global__ void __launch_bounds__(Group::kBlock) cut_kernel(float factor, int size, size_t stride, float* x) {
  await_previous();
  float* own = x + Group::row() * stride;
  float sum = 0;
  for_each<kNormThreads, float>(own, size, [&](int, const float* v) { sum += *v; });
  const float mean = Group::sum(sum) / static_cast<float>(size);
  const float cut = mean + factor * sqrtf(row_mean_square(own, size, mean));
  for_each<kNormThreads, float>(own, size, [&](int i, const float* v) { own[i] = *v <= cut ? 0.0f : *v - cut; });
}

dim3 blocks_of(const StreamShape& shape) {
  const size_t count = static_cast<size_t>(shape.rows) * static_cast<size_t>(shape.size);
  return dim3(static_cast<unsigned>(divide_up(count, static_cast<size_t>(kThreads))));
}

}  // namespace

void mix_streams(cudaStream_t stream, const StreamShape& shape, const float* factors, const float* x, float* y) {
  if (shape.rows == 0) return;
  launch(mix_kernel, blocks_of(shape), dim3(kThreads), 0, stream, shape, factors, x, y);
}

void correct_streams(cudaStream_t stream, const StreamShape& shape, int active, const float* factors, const float* made,
                     float* x) {
  if (shape.rows == 0) return;
  launch(correct_kernel, blocks_of(shape), dim3(kThreads), 0, stream, shape, active, factors, made, x);
}

void match_rms(cudaStream_t stream, const float* like, int rows, int size, float* x) {
  if (rows == 0) return;
  launch(match_kernel, dim3(rows), dim3(Group::kBlock), 0, stream, like, size, x);
}

void cut_rows(cudaStream_t stream, float factor, int rows, int size, size_t stride, float* x) {
  if (rows == 0) return;
  launch(cut_kernel, dim3(rows), dim3(Group::kBlock), 0, stream, factor, size, stride, x);
}

}  // namespace turbomind::cuda
