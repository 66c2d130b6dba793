// Sampling operations on one row of logits, and their random numbers.
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
bool uses_only(const SamplingFields& requested, const Names& known) {
  bool is_known = true;
  visit_sampling(requested, [&](std::string_view name, const auto& value, const auto& off) {
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

// In [0, 1). Counter-based (Philox 4x32-10, Salmon et al., 2011): the n-th draw of a seed is a pure function of both,
// on every device (constexpr: CUDA kernels call it too), so a request's tokens depend on its seed alone, whatever else
// runs, and survive recomputation.
constexpr double uniform(uint64_t seed, uint64_t counter) {
  uint32_t x[4] = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * x[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * x[2];
    const uint32_t first = static_cast<uint32_t>(b >> 32) ^ x[1] ^ key[0];
    const uint32_t third = static_cast<uint32_t>(a >> 32) ^ x[3] ^ key[1];
    x[0] = first;
    x[1] = static_cast<uint32_t>(b);
    x[2] = third;
    x[3] = static_cast<uint32_t>(a);
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  const uint64_t bits = (static_cast<uint64_t>(x[0]) << 32 | x[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace turbomind
