// Operations on one row of logits.
#pragma once

#include <cstdint>
#include <vector>

namespace turbomind {

// How a token is chosen, apart from lists of tokens.
struct SamplingParams {
  bool is_greedy = true;
  float temperature = 1;
  int top_k = 0;  // 0: no limit
  float top_p = 1;
  float min_p = 0;
  float top_n_sigma = 0;  // 0: no limit; the host's sampler alone has it
  uint64_t seed = 0;
  uint64_t draw = 0;  // tokens of the response so far
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
};

// Index of the largest value, the lowest index among equals; -1 if any value is NaN or all are -infinity.
int32_t argmax(const float* logits, int size);

// Values are looked at in chunks of this many.
inline constexpr int kLogitChunk = 64;

// Largest value of each chunk; maxima [size / kLogitChunk rounded up].
void chunk_maxima(const float* logits, int size, float* maxima);

// weights[i] = exp((logits[i] - maximum) * factor), and the sum of each chunk's weights. sums [size / kLogitChunk
// rounded up].
void exp_weights(const float* logits, int size, float maximum, float factor, float* weights, float* sums);

// Sets to -infinity every value whose bit in `mask` ([size / 32 rounded up]) is 0.
void apply_mask(const int32_t* mask, int size, float* logits);

}  // namespace turbomind
