// Sampling interface of a device; engine/generation/generation.h samples on the host.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/sampling.h"

namespace turbomind {

// Pointers are the host's and are read when the step begins, not later.
struct SamplingMetadata : SamplingParams {
  // Tokens that penalties count, the first prompt_len of which are the prompt, and the `in_flight` tokens after them.
  uint64_t sequence = 0;  // unique number of the sequence
  const std::vector<int32_t>* tokens = nullptr;
  int prompt_len = 0;
  int in_flight = 0;

  const std::vector<std::pair<int32_t, float>>* biases = nullptr;  // each token once
  std::vector<int32_t> forbidden;
  const int32_t* mask = nullptr;  // [vocab / 32 rounded up]; bit 0: the token is forbidden. Null: none
  int logprobs = -1;  // this many most likely tokens are reported too; -1: not even the chosen one's probability

  bool has_penalties() const { return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0; }
};

struct SampledToken {
  int32_t token = -1;  // -1: the logits hold NaN or allow no token
  // Where requested, log probabilities under the unmodified distribution.
  float log_probability = 0;
  const int32_t* top_tokens = nullptr;  // [logprobs], the most likely first
  const float* top_log_probabilities = nullptr;
};

// A token of a step that the step before samples.
struct InFlightToken {
  int row;     // of the step
  int choice;  // of the step before
};

// A step calls begin, scatter, choose for all its rows, and end; collect may follow after the next step's begin.
class TokenSampler {
 public:
  virtual ~TokenSampler() = default;

  // Whether the next step can sample so; it then must. Space for penalties, masks and lists is limited.
  virtual bool reserve(const SamplingMetadata& choice) = 0;

  virtual void begin(const std::vector<const SamplingMetadata*>& choices) = 0;
  // Writes in-flight tokens into their rows of `tokens` (the device's).
  virtual void scatter(const std::vector<InFlightToken>& in_flight, int32_t* tokens) = 0;
  // Samples rows first to first + count - 1. logits [count, vocab] (the device's), changed.
  virtual void choose(int first, int count, float* logits) = 0;
  virtual void end() = 0;
  // Waits for the oldest ended step that was not collected. Its tokens, in order, valid until the next call.
  virtual const SampledToken* collect() = 0;
  // For how long the device has worked on that step.
  virtual double seconds_taken() const = 0;
};

}  // namespace turbomind
