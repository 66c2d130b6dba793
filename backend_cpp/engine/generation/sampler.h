// Token sampler of the host: chooses a token from a row of logits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/request.h"
#include "kernels/sampling.h"

namespace turbomind {

// Log probabilities of the model itself, before penalties and limits.

// Log probabilities of `token`, and of the `top` most likely. logits [vocab_size].
TokenLogprobs log_probabilities(const float* logits, int vocab_size, int32_t token, int top);
// -log p of `token`.
double negative_log_probability(const float* logits, int vocab_size, int32_t token);

// Penalties and biases on the logits of the next token.
//
// Repetition: Keskar et al., 2019, a seen token's logit is divided by the penalty when positive and multiplied when
// negative. Presence and frequency: OpenAI API reference. The order of both and the biases is that of `transformers`
// where it has the step.

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
  void record(int32_t token) {
    if (counts_tokens()) ++counts_[token];
  }
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

// One for all responses: it keeps nothing between two calls but its workspace. Used by the step thread only.
class Sampler {
 public:
  explicit Sampler(int vocab_size) : vocab_size_(vocab_size) {}

  // The token number rule.draw of a response, or -1 when the logits hold NaN or allow no token. Penalties, biases and
  // what is forbidden (-infinity) are in `logits` [vocab] already, to which top-n sigma adds. Order: top-n sigma,
  // temperature, top-k, top-p, min-p, typical-p, that of `transformers` where it has the step.
  int32_t sample(float* logits, const SamplingParams& rule);

 private:
  struct Candidate {
    float logit;
    int32_t token;
    double weight;  // relative to the most likely token's
  };

  void apply_top_n_sigma(float* logits, const SamplingParams& rule, float largest) const;
  int32_t draw_from(const float* logits, const SamplingParams& rule, int32_t best);
  int32_t draw_from_all(double u) const;
  int32_t draw_from_candidates(int32_t best, double u) const;
  double weigh(const float* logits, const SamplingParams& rule, float largest);
  void select_top_k(const float* logits, int count);
  void apply_top_p(const float* logits, const SamplingParams& rule, double total);
  void apply_typical_p(const SamplingParams& rule);

  int vocab_size_;
  std::vector<Candidate> candidates_;
  std::vector<float> weights_;     // [vocab]
  std::vector<float> chunk_sums_;  // of weights_
  std::vector<float> maxima_;      // of chunks of logits
};

}  // namespace turbomind
