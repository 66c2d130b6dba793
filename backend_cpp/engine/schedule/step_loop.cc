#include "engine/schedule/step_loop.h"

namespace turbomind {

bool StepLoop::run(const OnOutput& on_output) {
  const auto start = Clock::now();
  Step& now = steps_[current_];
  if (!is_in_flight_) {
    scheduler_.plan(now);
    if (now.is_empty()) return false;
    launch(now);
  }
  scheduler_.commit(now);
  Step& next = steps_[1 - current_];
  const bool overlaps = can_overlap(now);
  if (overlaps) scheduler_.plan(next, false);
  is_in_flight_ = overlaps && !next.is_empty();
  if (is_in_flight_) launch(next);
  collect(now, on_output);
  current_ = 1 - current_;
  stats_.step_seconds += seconds_between(start, Clock::now());
  return true;
}

void StepLoop::abort() {
  is_in_flight_ = false;
  steps_ = {};
}

void StepLoop::launch(Step& step) {
  if (runner_.traits().samples_on_device) {
    for (size_t i = 0; i < step.sequences.size(); ++i) {
      StepSpan& span = step.input.spans[i];
      Sequence& sequence = *step.sequences[i];
      if (span.requested != SpanLogits::kLast || span.drafts > 0 || sequence.generation.needs_logits()) continue;
      if (sequence.generation.is_complete()) continue;  // nothing to choose
      const SamplingMetadata& choice = sequence.generation.choice(sequence.in_flight);
      if (!runner_.reserve(choice)) continue;
      span.requested = SpanLogits::kNone;
      span.choice = &choice;
    }
  }
  const auto start = Clock::now();
  if (!step.moves.empty()) runner_.move_pages(step.moves);
  runner_.launch(step.input);
  step.begin_seconds = seconds_between(start, Clock::now());
  stats_.tokens_computed += static_cast<int64_t>(step.input.tokens.size());
  ++stats_.steps;
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    if (step.input.spans[i].choice == nullptr) continue;
    ++step.sequences[i]->in_flight;
    step.sequences[i]->in_flight_span = static_cast<int>(i);
  }
}

void StepLoop::collect(Step& step, const OnOutput& on_output) {
  const auto start = Clock::now();
  const StepOutput output = runner_.collect();
  stats_.forward_seconds +=
      output.device_seconds > 0 ? output.device_seconds : step.begin_seconds + seconds_between(start, Clock::now());
  if (output.token_hidden != nullptr) scheduler_.record_hidden(step, output.token_hidden);
  float* logits = output.logits;
  const float* hidden = output.hidden;
  const SampledToken* chosen = output.chosen;
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    Sequence& sequence = *step.sequences[i];
    const StepSpan& span = step.input.spans[i];
    const bool is_sampled = span.choice != nullptr;
    const int count = span.logit_rows();
    if (is_sampled) --sequence.in_flight;
    if (sequence.is_open && (is_sampled || count > 0)) {
      on_output(step.sequences[i], {span, is_sampled ? chosen : nullptr, count, logits, hidden,
                                    runner_.traits().vocab_size, runner_.traits().hidden_size});
    }
    if (is_sampled) ++chosen;
    if (logits != nullptr) logits += static_cast<size_t>(count) * runner_.traits().vocab_size;
    hidden += static_cast<size_t>(count) * runner_.traits().hidden_size;
  }
  step.sequences.clear();  // ended ones hold their callers' callbacks
  step.encoding.clear();
}

// Whether what follows the step can be planned before its tokens are known.
bool StepLoop::can_overlap(const Step& step) const {
  if (!runner_.traits().samples_on_device || step.was_short_of_blocks) return false;
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    if (step.input.spans[i].requested != SpanLogits::kNone) return false;
    if (step.input.spans[i].choice != nullptr && step.sequences[i]->generation.needs_known_tokens()) return false;
  }
  return !scheduler_.would_draft(step);
}

}  // namespace turbomind
