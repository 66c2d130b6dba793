// Penalties and biases on the logits of the next token.
//
// Repetition: Keskar et al., 2019, a seen token's logit is divided by the penalty when positive and multiplied when
// negative. Presence and frequency: OpenAI API reference. The order of both and the biases is that of `transformers`
// where it has the step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/sampling.h"

namespace turbomind {

// The distinct tokens of a prompt; its responses share them. Empty without a repetition penalty.
class PromptTokens {
 public:
  PromptTokens(const SamplingParams& rule, const std::vector<int32_t>& prompt, int vocab_size);

  const std::vector<int32_t>& all() const { return all_; }
  bool contains(int32_t token) const { return !is_there_.empty() && is_there_[static_cast<size_t>(token)]; }

 private:
  std::vector<int32_t> all_;
  std::vector<bool> is_there_;  // [vocab], or empty
};

// The penalties of one response. The arguments must outlive it.
class Penalties {
 public:
  using Biases = std::vector<std::pair<int32_t, float>>;  // each token once

  Penalties(const SamplingParams& rule, const PromptTokens& prompt, const Biases& biases)
      : rule_(rule), prompt_(prompt), biases_(biases) {}

  // Adds a token of the response.
  void note(int32_t token);
  // Changes logits [vocab].
  void apply(float* logits) const;

 private:
  bool counts_tokens() const {
    return rule_.repetition_penalty != 1 || rule_.presence_penalty != 0 || rule_.frequency_penalty != 0;
  }

  const SamplingParams& rule_;
  const PromptTokens& prompt_;
  const Biases& biases_;
  std::unordered_map<int32_t, int> counts_;  // of the response's tokens; empty without penalties
};

}  // namespace turbomind
