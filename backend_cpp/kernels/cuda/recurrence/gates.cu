#include "kernels/cuda/elementwise/activated.cuh"
#include "kernels/cuda/recurrence/recurrence.h"

namespace turbomind::cuda {

namespace {

constexpr int kThreads = 256;

// log(1 + e^v)
__device__ __forceinline__ float softplus(float v) {
  return at_least(v, 0.0f) + log1pf(expf(-fabsf(v)));
}

// A thread has one decay, and the first of a head its beta.
__global__ void __launch_bounds__(kThreads)
    gates_kernel(GateParams params, StridedRows a, StridedRows b, size_t count, float* decay, float* beta) {
  await_previous();
  const size_t index = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= count) return;
  const size_t row_size = static_cast<size_t>(params.heads) * params.width;
  const size_t row = index / row_size;
  const size_t at = index % row_size;
  const size_t head = at / params.width;
  float step = softplus(a.row(row)[at] + params.dt_bias[at]);
  if (params.kind == RecurrenceGate::kMamba) step = at_most(at_least(step, params.dt_min), params.dt_max);
  decay[index] = expf(-expf(params.a_log[head]) * step);
  if (at % params.width != 0) return;
  if (params.kind == RecurrenceGate::kMamba) {
    beta[row * params.heads + head] = step;
  } else if (b.first != nullptr) {
    beta[row * params.heads + head] = 1.0f / (1.0f + expf(-b.row(row)[head]));
  }
}

// A thread has one element.
__global__ void __launch_bounds__(kThreads) gate_kernel(GateKind kind, HeadsView gate, HeadsView x, size_t count) {
  await_previous();
  const size_t index = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= count) return;
  const int i = static_cast<int>(index % x.head_dim);
  const int head = static_cast<int>(index / x.head_dim % x.heads);
  const size_t row = index / x.head_dim / x.heads;
  const float value = gate.head(row, head)[i];
  float factor = value;
  if (kind == GateKind::kSilu) factor = sigmoid_linear(value, 1.0f);
  if (kind == GateKind::kSigmoid) factor = 1.0f / (1.0f + expf(-value));
  x.head(row, head)[i] *= factor;
}

}  // namespace

void recurrence_gates(cudaStream_t stream, const GateParams& params, const StridedRows& a, const StridedRows& b,
                      int rows, float* decay, float* beta) {
  const size_t count = static_cast<size_t>(rows) * params.heads * params.width;
  if (count == 0) return;
  launch(gates_kernel, dim3(static_cast<unsigned>(divide_up(count, kThreads))), dim3(kThreads), 0, stream, params, a, b,
         count, decay, beta);
}

void gate_heads(cudaStream_t stream, GateKind kind, const HeadsView& gate, const HeadsView& x) {
  const size_t count = static_cast<size_t>(x.rows) * x.heads * x.head_dim;
  if (count == 0) return;
  launch(gate_kernel, dim3(static_cast<unsigned>(divide_up(count, kThreads))), dim3(kThreads), 0, stream, kind, gate, x,
         count);
}

}  // namespace turbomind::cuda
