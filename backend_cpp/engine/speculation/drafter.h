// What guesses how sequences go on by computing: a smaller model, or a head of the model itself.
//
// Used by the step thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/sampling.h"
#include "model/model_runner.h"

namespace turbomind {

// Of one sequence: the tokens whose rows are in a draft model's cache, and the blocks they are in.
struct DraftCache {
  std::vector<int32_t> tokens;
  std::vector<int32_t> blocks;
};

// Of one sequence: what the model made of its last tokens, as a head takes it.
struct HiddenRows {
  int first = 0;            // position of the first of them
  std::vector<float> rows;  // [count, HeadTraits::width]
};

class Drafter {
 public:
  // A sequence to guess for. `blocks` has places for the tokens and all guesses but the last.
  struct Work {
    const std::vector<int32_t>& tokens;
    const std::vector<int32_t>& blocks;
    DraftCache& cache;
    HiddenRows& hidden;
    std::function<const SamplingRule&(int)> rule;  // how its next token, and those behind, are chosen
    std::vector<int32_t>& drafts;                  // gets the guesses
  };
  // What the model it guesses for has computed of a sequence in a step.
  struct Seen {
    const StepSpan& span;
    const std::vector<int32_t>& tokens;  // of the sequence, which has none of the step's drafts yet
    HiddenRows& hidden;
  };

  virtual ~Drafter() = default;

  // Rows that it has to run before the first guess for a sequence.
  virtual int missing_rows(const Work& work) = 0;
  // Guesses `count` tokens of each, or fewer where a guess is none of the model's tokens, or where it knows too little.
  virtual void draft(std::span<const Work> all, int count) = 0;
  // A step was run; row_hidden [rows of the step, width] as StepOutput has it.
  virtual void see(std::span<const Seen> all, const float* row_hidden) {
    (void)all;
    (void)row_hidden;
  }
};

}  // namespace turbomind
