// Operations on one row of logits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <vector>

#include "kernels/sampling_fields.h"

namespace turbomind {

// How a token is chosen, apart from lists of tokens.
struct SamplingParams : SamplingFields {
  bool is_greedy = true;
  uint64_t seed = 0;
  uint64_t draw = 0;  // tokens of the response so far
};

// Whether nothing is asked for but by these fields: what chooses tokens leaves others to the host.
template <class Names>
bool asks_only_for(const SamplingFields& wanted, const Names& known) {
  bool is_known = true;
  visit_sampling(wanted, [&](std::string_view name, const auto& value, const auto& off) {
    is_known = is_known && (value == off || std::ranges::find(known, name) != std::end(known));
  });
  return is_known;
}

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
