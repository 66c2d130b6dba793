// Chooses the next token from a row of logits.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/request.h"

namespace turbomind {

// Counter-based random numbers: the n-th draw of a seed is a pure function of both (Philox 4x32-10, Salmon et al., 2011),
// so a request's tokens depend on its seed alone, whatever else runs, and survive recomputation.
double uniform(uint64_t seed, uint64_t counter);  // in [0, 1)

class Sampler {
 public:
  Sampler(const GenerationParams& params, uint64_t seed, int vocab_size);

  // Tokens that the repetition penalty covers.
  void note(int32_t token);

  // The next token, or -1 when the logits hold NaN or allow no token. `logits` [vocab] is changed. `draw` counts the
  // tokens this request has sampled before. Tokens in `forbidden` cannot be chosen.
  // Order, as in `transformers`: repetition penalty, forbidden tokens, temperature, top-k, top-p.
  int32_t sample(float* logits, uint64_t draw, const std::vector<int32_t>& forbidden);

 private:
  struct Candidate {
    float logit;
    int32_t token;
  };

  void penalise(float* logits) const;
  int32_t draw_from(float* logits, uint64_t draw);
  void keep_top_k(int count);
  size_t nucleus_size(double total);

  GenerationParams params_;
  uint64_t seed_;
  int vocab_size_;
  std::vector<bool> is_noted_;  // [vocab]; empty without a penalty
  std::vector<int32_t> noted_;
  std::vector<Candidate> candidates_;  // scratch
};

}  // namespace turbomind
