// How a sequence's next token is chosen where its logits are, and what was chosen. engine/generation/generation.h does
// the same on the host.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/sampling.h"

namespace turbomind {

// Pointers are the host's and are read when the step begins, not later.
struct TokenChoice : SamplingParams {
  // Tokens that penalties count: those so far, of which the first prompt_len are no response; after them come
  // `unseen` tokens that were chosen by the steps before and that the host does not know yet.
  uint64_t sequence = 0;  // names the sequence; never that of another one
  const std::vector<int32_t>* tokens = nullptr;
  int prompt_len = 0;
  int in_flight = 0;

  const std::vector<std::pair<int32_t, float>>* biases = nullptr;  // each token once
  std::vector<int32_t> forbidden;
  const int32_t* mask = nullptr;  // [vocab / 32 rounded up]; bit 0: the token is forbidden. Null: none
  int logprobs = -1;  // this many most likely tokens are reported too; -1: not even the chosen one's probability

  bool has_penalties() const { return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0; }
};

struct ChosenToken {
  int32_t token = -1;  // -1: the logits hold NaN or allow no token
  // Where asked for, log probabilities under the model's own distribution.
  float log_probability = 0;
  const int32_t* top_tokens = nullptr;  // [logprobs], the most likely first
  const float* top_log_probabilities = nullptr;
};

}  // namespace turbomind
