// The interface of draft models and draft heads.
//
// Used by the step thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/sampling.h"
#include "model/model_runner.h"

namespace turbomind {

// Of one sequence: the tokens that are in a draft model's cache.
struct DraftCache {
  std::vector<int32_t> tokens;
};

// Of one sequence: the model's hidden states of its last tokens, as input of a head.
struct HiddenStates {
  int begin = -1;             // position of the first token ever seen, -1: none
  int first = 0;              // position of the first of those kept
  std::vector<float> states;  // [count, HeadTraits::width]
};

// The maximum tokens of a drafter's step, given the model's: more would take memory from the cache.
constexpr int drafter_rows(int max_step_tokens) {
  return std::min(max_step_tokens, 1024);
}

class Drafter {
 public:
  // A sequence to draft for. `tables` has room for the tokens and all drafts but the last; the first `cached_tokens` of
  // these were a prefix hit.
  struct Work {
    const std::vector<int32_t>& tokens;
    const PageTables& tables;
    int cached_tokens;
    DraftCache& cache;
    HiddenStates& hidden;
    int& cached;                                     // output: leading tokens in the drafter's cache
    std::function<const SamplingParams&(int)> rule;  // sampling of its next token, and those after
    std::vector<int32_t>& drafts;                    // output
  };
  // What the target model computed for a sequence in a step.
  struct Seen {
    const StepSpan& span;
    const std::vector<int32_t>& tokens;  // of the sequence, without the step's drafts
    HiddenStates& hidden;
  };

  virtual ~Drafter() = default;

  // The number of tokens to run before the first draft for a sequence.
  virtual int missing_tokens(const Work& work) = 0;
  // Drafts `count` tokens for each; fewer after a draft outside the model's vocabulary, or without hidden states.
  virtual void draft(std::span<const Work> all, int count) = 0;
  // Receives a step's hidden states; token_hidden [tokens of the step, width] as in StepOutput.
  virtual void see(std::span<const Seen> all, const float* token_hidden) {
    (void)all;
    (void)token_hidden;
  }
};

}  // namespace turbomind
