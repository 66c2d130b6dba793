// Common parts of the kernels of sampling.h: how a row is divided, its order of tokens, and weights.
#pragma once

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/sampling/sampling.h"

namespace turbomind::cuda {

inline constexpr int kChunkTokens = 2048;
inline constexpr int kChunkThreads = 256;
inline constexpr int kSetTokens = 32;  // four neighbours from each of the eight rounds in which a block reads its chunk
inline constexpr int kChunkSets = kChunkTokens / kSetTokens;

using Weight = unsigned long long;
inline constexpr Weight kWeightOne = Weight{1} << 44;  // 2^18 of them fit

// The largest logit of a chunk.
struct ChunkTop {
  float logit;
  int32_t token;  // the lowest among equals
};
inline constexpr int32_t kNoToken = -1;  // all are -infinity
inline constexpr int32_t kNotANumber = -2;

// Results between the kernels, in scratch memory.
struct SamplingState {
  ChunkTop* tops;  // [rows, chunks]
  Weight* sums;    // [rows, chunks]
  uint32_t* sets;  // [rows, chunks, kChunkSets]; key of each set's largest logit
  int chunks;
};

// Greater for a greater logit; equal for equal ones, 0 and -0 too.
__device__ __forceinline__ uint32_t key_of(float logit) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);
  return bits ^ (static_cast<int32_t>(bits) < 0 ? 0xFFFFFFFFu : 0x80000000u);
}

// Orders tokens: the likelier, and the lower among equals, is greater. Never 0.
__device__ __forceinline__ uint64_t order_key(float logit, int32_t token) {
  return static_cast<uint64_t>(key_of(logit)) << 32 | ~static_cast<uint32_t>(token);
}
__device__ __forceinline__ int32_t token_of(uint64_t order) {
  return static_cast<int32_t>(~static_cast<uint32_t>(order));
}

__device__ __forceinline__ bool has_top_k(const SamplingRow& row, int vocab_size) {
  return row.top_k > 0 && row.top_k < vocab_size;
}
// Whether tokens are drawn from in order of their logits, rather than of their ids.
__device__ __forceinline__ bool is_ranked(const SamplingRow& row, int vocab_size) {
  return has_top_k(row, vocab_size) || row.top_p < 1;
}

__device__ __forceinline__ Weight weight_of(float logit, float largest, float temperature) {
  return static_cast<Weight>(expf((logit - largest) * (1.0f / temperature)) * static_cast<float>(kWeightOne));
}

__device__ __forceinline__ bool is_before(const ChunkTop& a, const ChunkTop& b) {
  if (a.token == kNotANumber || b.token == kNotANumber) return a.token == kNotANumber;
  if (a.token == kNoToken || b.token == kNoToken) return b.token == kNoToken;
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// The top of a block's values, in every thread. kThreads is the number of threads; all call it.
template <int kThreads>
__device__ ChunkTop block_top(ChunkTop thread_top) {
  __shared__ ChunkTop tops[kThreads / kWarp];
  const auto take = [&](const ChunkTop& other) {
    if (is_before(other, thread_top)) thread_top = other;
  };
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    take({__shfl_xor_sync(kAllLanes, thread_top.logit, step), __shfl_xor_sync(kAllLanes, thread_top.token, step)});
  }
  if (threadIdx.x % kWarp == 0) tops[threadIdx.x / kWarp] = thread_top;
  __syncthreads();
  for (int w = 0; w < kThreads / kWarp; ++w) take(tops[w]);
  __syncthreads();
  return thread_top;
}

// The largest logit of a row.
template <int kThreads>
__device__ ChunkTop row_top(const ChunkTop* tops, int chunks) {
  ChunkTop thread_top{-INFINITY, kNoToken};
  for (int i = threadIdx.x; i < chunks; i += kThreads) {
    if (is_before(tops[i], thread_top)) thread_top = tops[i];
  }
  return block_top<kThreads>(thread_top);
}

// Changes the rows' logits; fills tops and sets.
void adjust_logits(cudaStream_t stream, const SamplingRow* sampling, float* logits, int vocab_size, int rows,
                   const SamplingState& state);
// Fills the sums of rows without top-k: of all tokens, or, where nothing but min_p limits, of those it leaves.
void sum_weights(cudaStream_t stream, const SamplingRow* sampling, const float* logits, int vocab_size, int rows,
                 const SamplingState& state);
void draw_tokens(cudaStream_t stream, const SamplingRow* sampling, const float* logits, int vocab_size, int rows,
                 const SamplingState& state, int32_t* tokens);

}  // namespace turbomind::cuda
