#include "kernels/cuda/sampling/sampling_row.cuh"

// A block has one chunk of one row (blockIdx.y) and visits it up to four times: penalties, biases, what is forbidden,
// then the mask and the largest. What a row does not want is skipped; the chunk stays in the first-level cache.

namespace turbomind::cuda {

namespace {

constexpr int kRounds = kChunkTokens / kChunkThreads;

__device__ __forceinline__ bool has_bit(const uint32_t* bits, int token) {
  return (bits[token / 32] >> token % 32 & 1u) != 0;
}

// Repetition: Keskar et al., 2019. Presence and frequency: OpenAI API reference. Quantized as the CPU does: no product
// is fused with a sum.
__device__ __forceinline__ float penalised(const SamplingRow& row, int token, float logit) {
  if (row.repetition_penalty != 1 && row.seen != nullptr && has_bit(row.seen, token)) {
    logit = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
  }
  const int count = row.counts != nullptr ? row.counts[token] : 0;
  if (count > 0) {
    const float frequency = __fmul_rn(row.frequency_penalty, static_cast<float>(count));
    logit = __fsub_rn(logit, __fadd_rn(row.presence_penalty, frequency));
  }
  return logit;
}

__global__ void __launch_bounds__(kChunkThreads)
    adjust_kernel(const SamplingRow* sampling, float* all_logits, int vocab_size, SamplingState state) {
  await_previous();
  const SamplingRow& row = sampling[blockIdx.y];
  float* logits = all_logits + static_cast<size_t>(blockIdx.y) * vocab_size;
  const int first = blockIdx.x * kChunkTokens;
  const int end = min(first + kChunkTokens, vocab_size);

  if (row.repetition_penalty != 1 || row.counts != nullptr) {
    for (int token = first + threadIdx.x; token < end; token += kChunkThreads) {
      logits[token] = penalised(row, token, logits[token]);
    }
    __syncthreads();
  }
  for (int i = threadIdx.x; i < row.bias_count; i += kChunkThreads) {
    const TokenBias bias = row.biases[i];
    if (bias.token >= first && bias.token < end) logits[bias.token] += bias.bias;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < row.forbidden_count; i += kChunkThreads) {
    const int32_t token = row.forbidden[i];
    if (token >= first && token < end) logits[token] = -INFINITY;
  }
  __syncthreads();

  ChunkTop top{-INFINITY, kNoToken};
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int token = first + i * kChunkThreads + threadIdx.x;
    if (token >= end) break;
    if (row.mask != nullptr && !has_bit(row.mask, token)) {
      logits[token] = -INFINITY;
      continue;
    }
    const float logit = logits[token];
    if (isnan(logit)) top.token = kNotANumber;
    if (top.token != kNotANumber && logit > top.logit) top = {logit, token};
  }
  if (!row.is_greedy && is_ranked(row, vocab_size)) {
    uint32_t key = key_of(top.logit);
#pragma unroll
    for (int step = 1; step < kSetTokens / kRounds; step *= 2) key = max(key, __shfl_xor_sync(kAllLanes, key, step));
    if (threadIdx.x % (kSetTokens / kRounds) == 0) {
      const size_t chunk = static_cast<size_t>(blockIdx.y) * state.chunks + blockIdx.x;
      state.sets[chunk * kChunkSets + threadIdx.x / (kSetTokens / kRounds)] = key;
    }
  }
  top = block_top<kChunkThreads>(top);
  if (threadIdx.x == 0) state.tops[static_cast<size_t>(blockIdx.y) * state.chunks + blockIdx.x] = top;
}

__global__ void __launch_bounds__(kChunkThreads)
    sum_kernel(const SamplingRow* sampling, const float* all_logits, int vocab_size, SamplingState state) {
  await_previous();
  const SamplingRow& row = sampling[blockIdx.y];
  if (row.is_greedy || has_top_k(row, vocab_size)) return;
  const size_t first_chunk = static_cast<size_t>(blockIdx.y) * state.chunks;
  const float largest = row_top<kChunkThreads>(state.tops + first_chunk, state.chunks).logit;
  const float* logits = all_logits + static_cast<size_t>(blockIdx.y) * vocab_size;
  const Weight threshold = is_ranked(row, vocab_size) ? 0 : static_cast<Weight>(row.min_p * kWeightOne);
  Weight sum = 0;
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int token = blockIdx.x * kChunkTokens + i * kChunkThreads + threadIdx.x;
    if (token >= vocab_size) break;
    const Weight weight = weight_of(logits[token], largest, row.temperature);
    if (weight >= threshold) sum += weight;
  }
  sum = block_sum<kChunkThreads>(sum);
  if (threadIdx.x == 0) state.sums[first_chunk + blockIdx.x] = sum;
}

}  // namespace

void adjust_logits(cudaStream_t stream, const SamplingRow* sampling, float* logits, int vocab_size, int rows,
                   const SamplingState& state) {
  launch(adjust_kernel, dim3(state.chunks, rows), dim3(kChunkThreads), 0, stream, sampling, logits, vocab_size, state);
}

void sum_weights(cudaStream_t stream, const SamplingRow* sampling, const float* logits, int vocab_size, int rows,
                 const SamplingState& state) {
  launch(sum_kernel, dim3(state.chunks, rows), dim3(kChunkThreads), 0, stream, sampling, logits, vocab_size, state);
}

}  // namespace turbomind::cuda
