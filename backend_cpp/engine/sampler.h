// Chooses the next token from a row of logits.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "device/token_choice.h"
#include "engine/request.h"

namespace turbomind {

// Counter-based random numbers: the n-th draw of a seed is a pure function of both (Philox 4x32-10, Salmon et al.,
// 2011), so a request's tokens depend on its seed alone, whatever else runs, and survive recomputation.
double uniform(uint64_t seed, uint64_t counter);  // in [0, 1)

// Log probabilities under the model's own distribution, before penalties and limits: of `token`, and of the `top`
// likeliest.
TokenLogprobs log_probabilities(const float* logits, int vocab_size, int32_t token, int top);
// -log p of `token` under the same distribution.
double negative_log_probability(const float* logits, int vocab_size, int32_t token);

class Sampler {
 public:
  Sampler(const GenerationParams& params, uint64_t seed, int vocab_size);

  // Takes notice of a token of the prompt, or of the answer.
  void note_prompt(int32_t token);
  void note_answer(int32_t token);

  // Appends the tokens that would complete a bad sequence of tokens; `tokens` are those so far.
  void append_forbidden(const std::vector<int32_t>& tokens, std::vector<int32_t>& forbidden) const;
  // Fills in what the request says, for a choice elsewhere.
  void describe(TokenChoice& choice) const;

  // The next token, or -1 when the logits hold NaN or allow no token. `logits` [vocab] is changed. `draw` counts the
  // tokens of the answer so far. Tokens in `forbidden` cannot be chosen, nor those whose bit is 0 in `mask` ([vocab /
  // 32 rounded up]; null: all may). Order: repetition penalty, presence and frequency penalty, bias, forbidden tokens,
  // mask, temperature, top-k, top-p, min-p (the order of `transformers` where it has the step).
  int32_t sample(float* logits, uint64_t draw, const std::vector<int32_t>& forbidden, const int32_t* mask);

 private:
  struct Candidate {
    float logit;
    int32_t token;
    double weight;  // relative to the likeliest token's
  };

  void penalise(float* logits) const;
  void forbid(float* logits, const std::vector<int32_t>& forbidden, const int32_t* mask) const;
  int32_t draw_from(const float* logits, int32_t best, double u);
  int32_t draw_from_all(double u) const;
  int32_t draw_from_candidates(int32_t best, double u) const;
  double weigh(const float* logits, float largest);
  void collect(const float* logits, int count);
  void keep_nucleus(const float* logits, double total);
  void drop_unlikely();

  GenerationParams params_;
  uint64_t seed_;
  int vocab_size_;
  std::vector<bool> is_seen_;                       // [vocab]; empty without a repetition penalty
  std::vector<int32_t> seen_;                       // tokens of prompt and answer, once each
  std::unordered_map<int32_t, int> answer_counts_;  // empty without presence and frequency penalty
  // Scratch.
  std::vector<Candidate> candidates_;
  std::vector<float> weights_;     // [vocab]
  std::vector<float> chunk_sums_;  // of weights_
  std::vector<float> maxima_;      // of chunks of logits
};

}  // namespace turbomind
