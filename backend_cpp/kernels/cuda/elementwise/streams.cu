#include "kernels/streams.h"

#include "kernels/cuda/elementwise/row_norm.cuh"

namespace turbomind {

using namespace cuda;

namespace {

constexpr int kThreads = 256;
using Group = RowGroup<kNormThreads>;

__global__ void __launch_bounds__(kThreads) mix_kernel(AltupPredict op) {
  await_previous();
  const size_t stream = static_cast<size_t>(op.rows) * op.size;
  const size_t index = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= stream) return;
  const float* row_factors = op.factors + index / op.size * op.count * op.count;
  for (int i = 0; i < op.count; ++i) {
    float sum = op.x[i * stream + index];
    for (int k = 0; k < op.count; ++k) sum += row_factors[i * op.count + k] * op.x[k * stream + index];
    op.y[i * stream + index] = sum;
  }
}

__global__ void __launch_bounds__(kThreads) correct_kernel(AltupCorrect op) {
  await_previous();
  const size_t stream = static_cast<size_t>(op.rows) * op.size;
  const size_t index = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= stream) return;
  const float* row_factors = op.factors + index / op.size * op.count;
  const float change = op.made[index] - op.x[op.active * stream + index];
  for (int i = 0; i < op.count; ++i) op.x[i * stream + index] += (1.0f + row_factors[i]) * change;
}

__global__ void __launch_bounds__(kThreads) sum_kernel(ScaledSum op) {
  await_previous();
  const size_t index = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index < static_cast<size_t>(op.rows) * op.size) op.y[index] = (op.y[index] + op.x[index]) * op.scale;
}

__device__ float row_mean_square(const float* x, int size, float mean) {
  float sum = 0;
  for_each<kNormThreads, float>(x, size, [&](int, const float* v) { sum += (*v - mean) * (*v - mean); });
  return Group::sum(sum) / static_cast<float>(size);
}

__global__ void __launch_bounds__(Group::kBlock) match_kernel(MatchRms op) {
  await_previous();
  const size_t offset = static_cast<size_t>(Group::row()) * op.size;
  const float root_mean_square = sqrtf(row_mean_square(op.like + offset, op.size, 0));
  const float found = row_mean_square(op.x + offset, op.size, 0);
  const float factor = root_mean_square / sqrtf(found < 1e-5f ? 1e-5f : found);
  float* row_values = op.x + offset;
  for_each<kNormThreads, float>(row_values, op.size, [&](int i, const float* v) { row_values[i] = *v * factor; });
}

__global__ void __launch_bounds__(Group::kBlock) activation_sparsity_kernel(ActivationSparsity op) {
  await_previous();
  float* row_values = op.x + Group::row() * op.stride;
  float sum = 0;
  for_each<kNormThreads, float>(row_values, op.size, [&](int, const float* v) { sum += *v; });
  const float mean = Group::sum(sum) / static_cast<float>(op.size);
  const float cut = mean + op.factor * sqrtf(row_mean_square(row_values, op.size, mean));
  for_each<kNormThreads, float>(row_values, op.size,
                                [&](int i, const float* v) { row_values[i] = *v <= cut ? 0.0f : *v - cut; });
}

// A thread has one number of a stream, or of every one.
template <class Op>
void launch_on_streams(void (*kernel)(Op), CudaStream stream, const Op& op) {
  const size_t count = static_cast<size_t>(op.rows) * static_cast<size_t>(op.size);
  const dim3 blocks(static_cast<unsigned>(divide_up(count, static_cast<size_t>(kThreads))));
  if (op.rows > 0) launch(kernel, blocks, dim3(kThreads), 0, stream, op);
}

template <class Op>
void launch_on_rows(void (*kernel)(Op), CudaStream stream, const Op& op) {
  if (op.rows > 0) launch(kernel, dim3(op.rows), dim3(Group::kBlock), 0, stream, op);
}

}  // namespace

void AltupPredict::run(CudaStream stream) const {
  launch_on_streams(mix_kernel, stream, *this);
}

void AltupCorrect::run(CudaStream stream) const {
  launch_on_streams(correct_kernel, stream, *this);
}

void ScaledSum::run(CudaStream stream) const {
  launch_on_streams(sum_kernel, stream, *this);
}

void MatchRms::run(CudaStream stream) const {
  launch_on_rows(match_kernel, stream, *this);
}

void ActivationSparsity::run(CudaStream stream) const {
  launch_on_rows(activation_sparsity_kernel, stream, *this);
}

}  // namespace turbomind
