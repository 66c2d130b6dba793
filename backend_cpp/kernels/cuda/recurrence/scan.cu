#include "kernels/cuda/device.h"
#include "kernels/cuda/elementwise/activated.cuh"
#include "kernels/recurrence.h"

namespace turbomind {

using namespace cuda;

namespace {

constexpr int kThreads = 128;

// A thread has one channel of one span, whose state is in registers for as long as rows pass.
__global__ void __launch_bounds__(kThreads) scan_kernel(SelectiveScan op) {
  await_previous();
  const StateSpan span = op.state.spans[blockIdx.x];
  const int channel = blockIdx.y * kThreads + threadIdx.x;
  if (span.count == 0 || channel >= op.channels) return;

  const auto width = static_cast<size_t>(op.channels);
  float* state = reinterpret_cast<float*>(op.state.state(span.page)) + channel;
  float h[kMaxScanKeyDim];
  float rates[kMaxScanKeyDim];
#pragma unroll
  for (int n = 0; n < kMaxScanKeyDim; ++n) {
    const bool has = n < op.key_dim;
    h[n] = has && span.is_fresh == 0 ? state[n * width] : 0.0f;
    rates[n] = has ? op.rates[n * width + channel] : 0.0f;
  }
  const float skip = op.skip[channel];
  for (int t = 0; t < span.count; ++t) {
    const size_t row = span.first_token + t;
    const float* key = op.keys.row(row);
    const float* query = op.queries.row(row);
    const float step = softplus(op.steps[row * width + channel]);
    const float x = op.x[row * width + channel];
    float sum = skip * x;
#pragma unroll
    for (int n = 0; n < kMaxScanKeyDim; ++n) {
      if (n < op.key_dim) {
        h[n] = expf(rates[n] * step) * h[n] + key[n] * (step * x);
        sum += query[n] * h[n];
      }
    }
    op.out[row * width + channel] = sum;
  }
#pragma unroll
  for (int n = 0; n < kMaxScanKeyDim; ++n) {
    if (n < op.key_dim) state[n * width] = h[n];
  }
}

// The same, of one number.
__global__ void __launch_bounds__(kThreads) lru_kernel(GatedLru op) {
  await_previous();
  const StateSpan span = op.state.spans[blockIdx.x];
  const int channel = blockIdx.y * kThreads + threadIdx.x;
  if (span.count == 0 || channel >= op.channels) return;

  const auto width = static_cast<size_t>(op.channels);
  float* state = reinterpret_cast<float*>(op.state.state(span.page)) + channel;
  float h = span.is_fresh == 0 ? *state : 0.0f;
  const float rate = op.rates[channel];
  const float input_bias = op.biases[channel];
  const float decay_bias = op.biases[width + channel];
  for (int t = 0; t < span.count; ++t) {
    const size_t at = static_cast<size_t>(span.first_token + t) * width + channel;
    const float written = op.x[at] / (1.0f + expf(-op.inputs[at] - input_bias));
    const float decay = expf(rate / (1.0f + expf(-op.decays[at] - decay_bias)));
    const bool is_first = span.is_fresh != 0 && t == 0;
    h = decay * h + (is_first ? written : written * sqrtf(1.0f - decay * decay));
    op.out[at] = h;
  }
  *state = h;
}

}  // namespace

void GatedLru::run(CudaStream stream) const {
  if (state.span_count == 0 || channels == 0) return;
  launch(lru_kernel, rows_and(state.span_count, divide_up(channels, kThreads)), dim3(kThreads), 0, stream, *this);
}

void SelectiveScan::run(CudaStream stream) const {
  if (state.span_count == 0 || channels == 0) return;
  launch(scan_kernel, rows_and(state.span_count, divide_up(channels, kThreads)), dim3(kThreads), 0, stream, *this);
}

}  // namespace turbomind
