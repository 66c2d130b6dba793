#include "kernels/cuda/device.h"
#include "kernels/cuda/elementwise/activated.cuh"
#include "kernels/recurrence.h"

namespace turbomind {

using namespace cuda;

namespace {

constexpr int kThreads = 256;

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
  const float biased = a.row(row)[at] + params.dt_bias[at];
  const float rate = expf(params.a_log[head]);
  float step = softplus(biased);
  if (params.kind == RecurrenceGate::kMamba) step = at_most(at_least(step, params.dt_min), params.dt_max);
  decay[index] = expf(params.bound > 0 ? -params.bound / (1.0f + expf(-rate * biased)) : -rate * step);
  if (at % params.width != 0) return;
  if (params.kind == RecurrenceGate::kMamba) {
    beta[row * params.heads + head] = step;
  } else if (b.first != nullptr) {
    beta[row * params.heads + head] = 1.0f / (1.0f + expf(-b.row(row)[head]));
  }
}

}  // namespace

void RecurrenceGates::run(CudaStream stream) const {
  const size_t count = static_cast<size_t>(rows) * params.heads * params.width;
  if (count == 0) return;
  launch(gates_kernel, dim3(static_cast<unsigned>(divide_up(count, kThreads))), dim3(kThreads), 0, stream, params, a, b,
         count, decay, beta);
}

}  // namespace turbomind
