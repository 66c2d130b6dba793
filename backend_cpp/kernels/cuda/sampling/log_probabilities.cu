#include "kernels/cuda/sampling/sampling_row.cuh"

// A block has a row. Each thread keeps the best of its own tokens (every kThreads-th); the best of all is taken, and
// its owner's warp looks for the owner's next.

namespace turbomind::cuda {

namespace {

constexpr int kThreads = 1024;

__global__ void __launch_bounds__(kThreads, 1)
    log_probability_kernel(const float* all_logits, int vocab_size, const int32_t* tokens, int top, float* chosen,
                           int32_t* top_tokens, float* top_logprobs) {
  await_previous();
  const float* logits = all_logits + static_cast<size_t>(blockIdx.x) * vocab_size;
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;

  uint64_t best = 0;  // of this thread's tokens
  float largest = -INFINITY;
  for (int token = threadIdx.x; token < vocab_size; token += kThreads) {
    const float logit = logits[token];
    largest = logit > largest || isnan(logit) ? logit : largest;
    best = max(best, order_key(logit, token));
  }
  largest = block_top<kThreads>({largest, isnan(largest) ? kNotANumber : static_cast<int32_t>(threadIdx.x)}).logit;
  double sum = 0;
  for (int token = threadIdx.x; token < vocab_size; token += kThreads) {
    sum += exp(static_cast<double>(logits[token]) - largest);
  }
  const double normaliser = largest + log(block_sum<kThreads>(sum));
  const auto log_p = [&](int32_t token) { return static_cast<float>(logits[token] - normaliser); };
  if (threadIdx.x == 0) chosen[blockIdx.x] = log_p(tokens[blockIdx.x]);

  for (int i = 0; i < top; ++i) {
    const uint64_t of_all = block_max<kThreads>(best);
    const int32_t token = token_of(of_all);
    if (threadIdx.x == 0) {
      top_tokens[static_cast<size_t>(blockIdx.x) * top + i] = token;
      top_logprobs[static_cast<size_t>(blockIdx.x) * top + i] = log_p(token);
    }
    const int owner = token % kThreads;
    if (warp == owner / kWarp) {
      uint64_t next = 0;
      for (int other = owner + lane * kThreads; other < vocab_size; other += kWarp * kThreads) {
        const uint64_t order = order_key(logits[other], other);
        if (order < of_all) next = max(next, order);
      }
      next = warp_max(next);
      if (lane == owner % kWarp) best = next;
    }
  }
}

}  // namespace

void log_probabilities(cudaStream_t stream, const float* logits, int vocab_size, int rows, const int32_t* tokens,
                       int top, float* chosen, int32_t* top_tokens, float* top_logprobs) {
  if (rows == 0) return;
  if (top > kMaxLogprobs || top > vocab_size) {
    throw internal_error("at most " + std::to_string(kMaxLogprobs) + " log probabilities of a vocabulary of " +
                         std::to_string(vocab_size) + " can be given, got " + std::to_string(top));
  }
  launch(log_probability_kernel, dim3(rows), dim3(kThreads), 0, stream, logits, vocab_size, tokens, top, chosen,
         top_tokens, top_logprobs);
}

}  // namespace turbomind::cuda
