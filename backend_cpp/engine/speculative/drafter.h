// What drafts how sequences continue by computing: a smaller model, or a head of the model itself.
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

// Of one sequence: what the model made of its last tokens, as a head takes it.
struct HiddenStates {
  int begin = -1;             // position of the first token that was ever seen, -1: none was
  int first = 0;              // position of the first of those kept
  std::vector<float> states;  // [count, HeadTraits::width]
};

// Tokens of a drafter's step where the model's have this many at most: more would take memory from the cache.
constexpr int drafter_rows(int max_step_tokens) {
  return std::min(max_step_tokens, 1024);
}

class Drafter {
 public:
  // A sequence to draft for. `tables` has places for the tokens and all drafts but the last; of these, the first
  // `cached_tokens` were found in the cache.
  struct Work {
    const std::vector<int32_t>& tokens;
    const PageTables& tables;
    int cached_tokens;
    DraftCache& cache;
    HiddenStates& hidden;
    int& cached;                                     // gets how many leading tokens are in the drafter's cache now
    std::function<const SamplingParams&(int)> rule;  // how its next token, and those after, are chosen
    std::vector<int32_t>& drafts;                    // gets the drafts
  };
  // What the model it drafts for has computed of a sequence in a step.
  struct Seen {
    const StepSpan& span;
    const std::vector<int32_t>& tokens;  // of the sequence, which has none of the step's drafts yet
    HiddenStates& hidden;
  };

  virtual ~Drafter() = default;

  // Tokens that it has to run before the first draft for a sequence.
  virtual int missing_tokens(const Work& work) = 0;
  // Drafts `count` tokens of each, or fewer where a draft is none of the model's tokens, or where it knows too little.
  virtual void draft(std::span<const Work> all, int count) = 0;
  // A step was run; token_hidden [tokens of the step, width] as StepOutput has it.
  virtual void see(std::span<const Seen> all, const float* token_hidden) {
    (void)all;
    (void)token_hidden;
  }
};

}  // namespace turbomind
