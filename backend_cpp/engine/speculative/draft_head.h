// A draft head such as EAGLE or MTP (model/head_input.h): from the model's hidden state of a token and the token
// that follows it, it predicts the token after that.
//
//   tokens of the sequence      t0  t1  ...  t(n-1)  t(n)        t(n) was sampled and is not computed yet
//   hidden states of the model  h0  h1  ...  h(n-1)
//   outputs of the head         (h0, t1)  ...  (h(n-1), t(n))    -> t(n+1), a draft
//
// Its keys and values are a cache group (model/cache_plan.h), so prefix caching works as for the model. It must see
// each step of the model: the hidden states of prompt tokens are used at once, those of the last few tokens are kept
// until the tokens that follow are known. After a prefix hit on a finished sequence the last ones are missing, which
// costs drafts, not correctness.
//
// Used by the step thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/generation/sampler.h"
#include "engine/speculative/drafter.h"

namespace turbomind {

class DraftHead final : public Drafter {
 public:
  DraftHead(ModelRunner& runner, int max_rows, int vocab_size);

  int missing_tokens(const Work& work) override;
  void draft(std::span<const Work> all, int count) override;
  void see(std::span<const Seen> all, const float* token_hidden) override;

 private:
  // A sequence in the steps of one call of draft().
  struct Running {
    const Work* work;
    int position;               // of its next token
    int32_t token;              // its last draft
    std::vector<float> hidden;  // after it
  };

  int count_of(const HiddenStates& hidden) const { return static_cast<int>(hidden.states.size()) / width_; }
  // Drafts up to `count` more tokens for each.
  void chain_from(std::span<const Running> running, int count);
  void draft(Running& running, int ahead, float* logits, const float* hidden);

  const HeadTraits& traits_;
  int width_;
  Sampler sampler_;
  std::vector<float> spread_;  // [vocab_size], for heads with a vocabulary of their own
};

}  // namespace turbomind
