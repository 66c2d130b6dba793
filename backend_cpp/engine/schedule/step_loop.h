// Runs the model over what the scheduler plans, step after step, and hands out what each step brings.
//
//   runner does not choose tokens     plan  begin  take  |  plan  begin  take  | ...
//   runner chooses tokens             plan  begin  plan' begin' take | plan'' begin'' take' | ...
//
// Where the runner chooses tokens, the next step begins before this one's tokens are seen (overlap scheduling), so that
// the device never waits for the host; but not where the tokens would say what to draft. At most two steps are in
// flight.
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

// What a step brings for one sequence. Valid during the call that gets it.
struct SpanOutput {
  const StepSpan& span;
  const ChosenToken* chosen;  // the token that the runner chose; null: it chose none
  int count;                  // wanted tokens; the last of them is the span's last
  float* logits;              // [count, vocab], writable; null: the model makes none
  const float* hidden;        // [count, hidden]
  int vocab_size;
  int hidden_size;

  float* logits_of(int index) const {
    return logits == nullptr ? nullptr : logits + static_cast<ptrdiff_t>(index) * vocab_size;
  }
  const float* hidden_of(int index) const { return hidden + static_cast<ptrdiff_t>(index) * hidden_size; }
};

class StepLoop {
 public:
  // Called for each open sequence that a step brings something for. Must not throw; may end sequences.
  using OnOutput = std::function<void(const std::shared_ptr<Sequence>&, const SpanOutput&)>;

  // `stats`: counts steps, tokens and time.
  StepLoop(Scheduler& scheduler, ModelRunner& runner, EngineStats& stats)
      : scheduler_(scheduler), runner_(runner), stats_(stats) {}

  // Runs one step to its end, and begins the next where that may overlap. False: there is nothing to do.
  // Throws what the runner throws: a device fault.
  bool run(const OnOutput& on_output);
  bool is_in_flight() const { return is_in_flight_; }
  // Forgets the steps in flight; after a fault.
  void abort();

 private:
  void begin(Step& step);
  void take(Step& step, const OnOutput& on_output);
  bool can_overlap(const Step& step) const;

  Scheduler& scheduler_;
  ModelRunner& runner_;
  EngineStats& stats_;
  std::array<Step, 2> steps_;  // the one in flight, and room for the next
  bool is_in_flight_ = false;  // steps_[0] was begun and not taken
};

}  // namespace turbomind
