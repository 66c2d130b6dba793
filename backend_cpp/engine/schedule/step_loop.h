// Executor of the scheduler's steps; passes on each step's outputs.
//
//   sampling on the host              plan  begin  take  |  plan  begin  take  | ...
//   sampling by the runner            plan  begin  plan' begin' take | plan'' begin'' take' | ...
//
// Where the runner samples tokens, the next step is launched before this one's tokens are read (asynchronous
// scheduling), so the device never waits for the host; except where drafts depend on the tokens. At most two steps are
// in flight.
//
// Used by the step thread only.
#pragma once

#include <array>
#include <cstddef>
#include <functional>

#include "engine/schedule/scheduler.h"
#include "engine/schedule/sequence.h"
#include "engine/stats.h"
#include "model/model_runner.h"

namespace turbomind {

// A step's output for one sequence. Valid during the callback.
struct SpanOutput {
  const StepSpan& span;
  const SampledToken* chosen;  // the token that the runner sampled; null: none
  int count;                   // rows with outputs; the last is the span's last token
  float* logits;               // [count, vocab], writable; null: the model has none
  const float* hidden;         // [count, hidden]
  int vocab_size;
  int hidden_size;

  float* logits_of(int index) const {
    return logits == nullptr ? nullptr : logits + static_cast<ptrdiff_t>(index) * vocab_size;
  }
  const float* hidden_of(int index) const { return hidden + static_cast<ptrdiff_t>(index) * hidden_size; }
};

class StepLoop {
 public:
  // Called for each open sequence with an output. Must not throw; may end sequences.
  using OnOutput = std::function<void(const std::shared_ptr<Sequence>&, const SpanOutput&)>;

  // `stats`: counts steps, tokens and time.
  StepLoop(Scheduler& scheduler, ModelRunner& runner, EngineStats& stats)
      : scheduler_(scheduler), runner_(runner), stats_(stats) {}

  // Completes one step and launches the next if they may overlap. False: there is nothing to do.
  // Throws what the runner throws: a device fault.
  bool run(const OnOutput& on_output);
  bool is_in_flight() const { return is_in_flight_; }
  // Drops the steps in flight after a fault.
  void abort();

 private:
  void launch(Step& step);
  void collect(Step& step, const OnOutput& on_output);
  bool can_overlap(const Step& step) const;

  Scheduler& scheduler_;
  ModelRunner& runner_;
  EngineStats& stats_;
  std::array<Step, 2> steps_;  // the one in flight, and room for the next
  size_t current_ = 0;         // the index of the one in flight
  bool is_in_flight_ = false;  // the current step was launched and not taken
};

}  // namespace turbomind
