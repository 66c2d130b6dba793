#include "kernels/cuda/device.h"
#include "kernels/cuda/elementwise/activated.cuh"
#include "kernels/recurrence.h"

namespace turbomind {

using namespace cuda;

namespace {

constexpr int kThreads = 128;

// A thread has one channel of one span, row after row, so y may be x. It reads a few rows ahead of what it computes.
template <int kKernel>
__global__ void __launch_bounds__(kThreads) conv_kernel(ConvParams params, StridedRows x, StridedRows y) {
  await_previous();
  constexpr int kAhead = 16;
  const StateSpan span = params.state.spans[blockIdx.x];
  const int channel = blockIdx.y * kThreads + threadIdx.x;
  if (span.count == 0 || channel >= params.channels) return;

  float taps[kKernel];
#pragma unroll
  for (int j = 0; j < kKernel; ++j) taps[j] = params.weight[static_cast<size_t>(channel) * kKernel + j];
  const float bias = params.bias != nullptr ? params.bias[channel] : 0.0f;

  float* state = reinterpret_cast<float*>(params.state.state(span.page)) + channel;
  float window[kKernel];  // the last inputs, oldest first
#pragma unroll
  for (int j = 0; j + 1 < kKernel; ++j) {
    window[j] = span.is_fresh != 0 ? 0.0f : state[static_cast<size_t>(j) * params.channels];
  }
  for (int first = 0; first < span.count; first += kAhead) {
    const int count = min(kAhead, span.count - first);
    float inputs[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      inputs[i] = i < count ? x.row(span.first_token + first + i)[channel] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (i < count) {
        window[kKernel - 1] = inputs[i];
        float sum = bias;
#pragma unroll
        for (int j = 0; j < kKernel; ++j) sum += taps[j] * window[j];
        y.row(span.first_token + first + i)[channel] = params.has_silu ? sigmoid_linear(sum, 1.0f) : sum;
#pragma unroll
        for (int j = 0; j + 1 < kKernel; ++j) window[j] = window[j + 1];
      }
    }
  }
#pragma unroll
  for (int j = 0; j + 1 < kKernel; ++j) state[static_cast<size_t>(j) * params.channels] = window[j];
}

template <int... kBefore>
auto* conv_kernel_of(int kernel, std::integer_sequence<int, kBefore...>) {
  auto* chosen = conv_kernel<1>;
  ((kernel == kBefore + 1 ? void(chosen = conv_kernel<kBefore + 1>) : void()), ...);
  return chosen;
}

}  // namespace

void CausalConv::run(CudaStream stream) const {
  if (rows == 0 || params.state.span_count == 0 || params.channels == 0) return;
  launch(conv_kernel_of(params.kernel, std::make_integer_sequence<int, kMaxConvKernel>{}),
         rows_and(params.state.span_count, divide_up(params.channels, kThreads)), dim3(kThreads), 0, stream, params, x,
         y);
}

}  // namespace turbomind
