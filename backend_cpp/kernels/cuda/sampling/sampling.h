// The next token of each row of logits, chosen on a GPU as engine/generation/sampler.h says.
//
// Three launches a batch. Blocks of kChunkTokens tokens change the logits (penalties, biases, what is forbidden) and
// find their largest; then, where no top-k limits a row, they sum its weights; then a block a row draws. Nothing is
// sorted. The most likely candidates, nearly always few, are compared all with all; where they do not suffice (a top-k
// or a nucleus of more than about a thousand tokens) cut-offs are found bit by bit over the whole row, which takes a
// hundred times longer.
//
// Weights are exp((logit - largest) / temperature) as integers, kWeightOne for 1: sums are exact and do not depend on
// their order, so a row's token depends on nothing but its own logits and SamplingRow. Alongside the CPU's float64
// sums, another token is drawn only where the random number lies within about 2e-6 of the border between two.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/sampling.h"

namespace turbomind::cuda {

struct TokenBias {
  int32_t token;
  float bias;
};

// Sampling parameters of one row; on the device. Lists may be null where they are empty.
struct SamplingRow : SamplingParams {
  const uint32_t* seen = nullptr;   // [vocab / 32 rounded up]; bit set: in prompt or response. With repetition_penalty
  const int32_t* counts = nullptr;  // [vocab]; occurrences in the response. With the other two penalties
  const TokenBias* biases = nullptr;  // [bias_count], each token once
  int bias_count = 0;
  const int32_t* forbidden = nullptr;  // [forbidden_count]
  int forbidden_count = 0;
  const uint32_t* mask = nullptr;  // [vocab / 32 rounded up]; bit 0: the grammar forbids the token
};

size_t sampling_scratch_bytes(int vocab_size, int rows);

// wanted [rows]; logits [rows, vocab_size], changed; tokens [rows]: -1 where logits hold NaN or allow no token.
void sample(cudaStream_t stream, Scratch scratch, const SamplingRow* sampling, float* logits, int vocab_size, int rows,
            int32_t* tokens);

// Takes notice of tokens [rows]: sets their bits in `seen` and counts them in `counts` of `sampling`, where these are.
// Tokens below 0 are passed over.
void record_tokens(cudaStream_t stream, const SamplingRow* sampling, const int32_t* tokens, int rows);

struct TokenMove {
  int32_t from;
  int32_t to;
};
// to[move.to] = from[move.from], 0 where that is negative. moves [count]
void move_tokens(cudaStream_t stream, const int32_t* from, const TokenMove* moves, int count, int32_t* to);

inline constexpr int kMaxLogprobs = 32;

// Log probabilities under the rows' logits as they are: chosen [rows] of tokens [rows]; of the `top` (at most
// kMaxLogprobs) most likely, best first, the lowest among equals, top_tokens and top_logprobs [rows, top].
void log_probabilities(cudaStream_t stream, const float* logits, int vocab_size, int rows, const int32_t* tokens,
                       int top, float* chosen, int32_t* top_tokens, float* top_logprobs);

}  // namespace turbomind::cuda
