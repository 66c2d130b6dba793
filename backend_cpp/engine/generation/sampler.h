// Chooses the next token from a row of logits.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/sampling.h"

namespace turbomind {

// One for all responses: it keeps nothing between two calls but its workspace. Used by the step thread only.
class Sampler {
 public:
  explicit Sampler(int vocab_size) : vocab_size_(vocab_size) {}

  // The token number rule.draw of a response, or -1 when the logits hold NaN or allow no token. Penalties, biases and
  // what is forbidden (-infinity) are in `logits` [vocab] already, to which top-n sigma adds. Order: top-n sigma,
  // temperature, top-k, top-p, min-p, that of `transformers` where it has the step.
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
  void apply_min_p(const SamplingParams& rule);

  int vocab_size_;
  std::vector<Candidate> candidates_;
  std::vector<float> weights_;     // [vocab]
  std::vector<float> chunk_sums_;  // of weights_
  std::vector<float> maxima_;      // of chunks of logits
};

}  // namespace turbomind
