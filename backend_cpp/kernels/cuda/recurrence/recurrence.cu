// The state of a head is in registers for as long as a span's rows pass: a thread has 32 rows of one column, and 1 to
// 8 threads of a warp share a column. Rows of the step come through shared memory, a few at a time.
#include "kernels/cuda/device.h"
#include "kernels/recurrence.h"

namespace turbomind {

using namespace cuda;

namespace {

constexpr int kThreads = 128;
constexpr int kRowsOfThread = 32;
constexpr int kTokens = 8;  // in shared memory

// Of kParts threads that have a column together: those of a warp whose lanes are equal modulo kWarp / kParts.
template <int kParts>
__device__ __forceinline__ float column_sum(float value) {
#pragma unroll
  for (int step = kWarp / kParts; step < kWarp; step *= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

// Sum over a thread's channels of key times state: four sums, which are added in pairs.
__device__ __forceinline__ float dot(const float (&state)[kRowsOfThread], const float (&factors)[kRowsOfThread]) {
  float sums[4] = {};
#pragma unroll
  for (int i = 0; i < kRowsOfThread; ++i) sums[i % 4] += factors[i] * state[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// A thread's channels are the quads `part`, part + kParts, ... of a head.
template <int kParts>
__device__ __forceinline__ int channel_of(int part, int i) {
  return (i / 4 * kParts + part) * 4 + i % 4;
}

template <int kParts>
__device__ __forceinline__ void take(const float* shared, int part, float (&thread_values)[kRowsOfThread]) {
#pragma unroll
  for (int i = 0; i < kRowsOfThread; i += 4) {
    const float4 quad = *reinterpret_cast<const float4*>(shared + channel_of<kParts>(part, i));
    thread_values[i] = quad.x;
    thread_values[i + 1] = quad.y;
    thread_values[i + 2] = quad.z;
    thread_values[i + 3] = quad.w;
  }
}

// Of some tokens, with zeros after the model's key_dim channels.
template <int kKeyDim>
struct alignas(sizeof(float4)) Rows {
  float queries[kTokens][kKeyDim];
  float keys[kTokens][kKeyDim];
  float decays[kTokens][kKeyDim];  // where there are as many
};

// A block has some columns of one head of one span.
template <int kParts>
__global__ void __launch_bounds__(kThreads)
    recurrence_kernel(RecurrenceParams params, HeadsView q, HeadsView k, HeadsView v, float* out) {
  await_previous();
  constexpr int kKeyDim = kParts * kRowsOfThread;  // at least the model's
  constexpr int kColumns = kThreads / kParts;
  constexpr int kWarpColumns = kWarp / kParts;
  __shared__ Rows<kKeyDim> rows;

  const StateSpan span = params.state.spans[blockIdx.x];
  if (span.count == 0) return;
  const int head = blockIdx.y;
  const int key_head = head / (params.heads / params.key_heads);
  const int lane = threadIdx.x % kWarp;
  const int part = lane / kWarpColumns;
  const int column = blockIdx.z * kColumns + static_cast<int>(threadIdx.x) / kWarp * kWarpColumns + lane % kWarpColumns;
  const bool is_column = column < params.value_dim;
  const bool has_channel_decay = params.decay_width > 1;

  float* stored = reinterpret_cast<float*>(params.state.state(span.page)) +
                  static_cast<size_t>(head) * params.key_dim * params.value_dim + column;
  float state[kRowsOfThread];
#pragma unroll
  for (int i = 0; i < kRowsOfThread; ++i) {
    const int channel = channel_of<kParts>(part, i);
    const bool has = is_column && span.is_fresh == 0 && channel < params.key_dim;
    state[i] = has ? stored[static_cast<size_t>(channel) * params.value_dim] : 0.0f;
  }
  const float skip = params.skip != nullptr ? params.skip[head] : 0.0f;

  for (int first = 0; first < span.count; first += kTokens) {
    const int tokens = min(kTokens, span.count - first);
    __syncthreads();  // what was there has been read
    for (int at = threadIdx.x; at < tokens * kKeyDim; at += kThreads) {
      const int token = at / kKeyDim;
      const int channel = at % kKeyDim;
      const bool has = channel < params.key_dim;
      const size_t row = span.first_token + first + token;
      rows.queries[token][channel] = has ? q.head(row, key_head)[channel] : 0.0f;
      rows.keys[token][channel] = has ? k.head(row, key_head)[channel] : 0.0f;
      if (has_channel_decay) {
        rows.decays[token][channel] =
            has ? params.decay[(row * params.heads + head) * params.decay_width + channel] : 0.0f;
      }
    }
    __syncthreads();
    for (int token = 0; token < tokens; ++token) {
      const size_t row = span.first_token + first + token;
      const float value = is_column ? v.head(row, head)[column] : 0.0f;
      const float beta = params.beta != nullptr ? params.beta[row * params.heads + head] : 1.0f;
      float factors[kRowsOfThread];
      if (has_channel_decay) {
        take<kParts>(rows.decays[token], part, factors);
#pragma unroll
        for (int i = 0; i < kRowsOfThread; ++i) state[i] *= factors[i];
      } else {
        const float decay = params.decay[params.decay_width == 0 ? head : row * params.heads + head];
#pragma unroll
        for (int i = 0; i < kRowsOfThread; ++i) state[i] *= decay;
      }
      take<kParts>(rows.keys[token], part, factors);
      const float known = params.has_delta ? column_sum<kParts>(dot(state, factors)) : 0.0f;
      const float written = beta * (value - known);
#pragma unroll
      for (int i = 0; i < kRowsOfThread; ++i) state[i] += factors[i] * written;
      take<kParts>(rows.queries[token], part, factors);
      const float result = column_sum<kParts>(dot(state, factors));
      if (is_column && part == 0) {
        out[(row * params.heads + head) * params.value_dim + column] =
            params.skip != nullptr ? result + skip * value : result;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kRowsOfThread; ++i) {
    const int channel = channel_of<kParts>(part, i);
    if (is_column && channel < params.key_dim) stored[static_cast<size_t>(channel) * params.value_dim] = state[i];
  }
}

}  // namespace

void Recurrence::run(CudaStream stream) const {
  if (params.state.span_count == 0) return;
  int parts = 1;
  while (parts * kRowsOfThread < params.key_dim) parts *= 2;
  const auto heads = static_cast<unsigned>(params.heads);
  const dim3 grid(static_cast<unsigned>(params.state.span_count), heads,
                  static_cast<unsigned>(divide_up(params.value_dim, kThreads / parts)));
  auto* kernel = parts == 1   ? recurrence_kernel<1>
                 : parts == 2 ? recurrence_kernel<2>
                 : parts == 4 ? recurrence_kernel<4>
                              : recurrence_kernel<8>;
  static_assert(kMaxKeyDim <= 8 * kRowsOfThread);
  launch(kernel, grid, dim3(kThreads), 0, stream, params, q, k, v, out);
}

}  // namespace turbomind
