// One step of the engine: plan it, begin it, hand out what it brings.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "engine/engine.h"

namespace turbomind {

// Where the runner chooses tokens, the next step begins before this one's tokens are seen, so that the device never
// waits for the host. At most two steps are under way.
void Engine::step() {
  const auto start = Clock::now();
  Step& now = steps_[0];
  if (!is_under_way_) {
    scheduler_.plan(now);
    if (now.sequences.empty()) return;
    begin(now);
  }
  scheduler_.commit(now);
  Step& next = steps_[1];
  const bool goes_ahead = may_go_ahead(now);
  if (goes_ahead) scheduler_.plan_ahead(next);
  is_under_way_ = goes_ahead && !next.sequences.empty();
  if (is_under_way_) begin(next);
  take(now);
  std::swap(now, next);
  counts_.step_seconds += seconds_between(start, Clock::now());
}

void Engine::begin(Step& step) {
  if (runner_->chooses_tokens()) {
    for (size_t i = 0; i < step.sequences.size(); ++i) {
      StepSpan& span = step.input.spans[i];
      if (span.wanted != SpanRows::kLast || !step.sequences[i]->may_be_chosen_for()) continue;
      const TokenChoice& choice = prepare_choice(*step.sequences[i]);
      if (!runner_->reserve(choice)) continue;
      span.wanted = SpanRows::kNone;
      span.choice = &choice;
    }
  }
  const auto start = Clock::now();
  runner_->begin(step.input);
  step.begin_seconds = seconds_between(start, Clock::now());
  counts_.tokens_computed += static_cast<int64_t>(step.input.tokens.size());
  ++counts_.steps;
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    if (step.input.spans[i].choice == nullptr) continue;
    ++step.sequences[i]->unseen;
    step.sequences[i]->unseen_span = static_cast<int>(i);
  }
}

// Whether what follows the step can be planned before its tokens are known.
bool Engine::may_go_ahead(const Step& step) const {
  if (!runner_->chooses_tokens() || step.was_short_of_blocks) return false;
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    if (step.input.spans[i].wanted != SpanRows::kNone) return false;
    if (step.input.spans[i].choice != nullptr && step.sequences[i]->must_see_tokens()) return false;
  }
  return true;
}

const TokenChoice& Engine::prepare_choice(Sequence& sequence) {
  const GenerationParams& params = sequence.params();
  TokenChoice& choice = sequence.choice;
  sequence.sampler.describe(choice);
  choice.draw = static_cast<uint64_t>(sequence.chosen());
  choice.sequence = sequence.job->arrival << 24 | static_cast<uint64_t>(sequence.index);
  choice.tokens = &sequence.tokens;
  choice.prompt_len = sequence.prompt_len;
  choice.unseen = sequence.unseen;
  choice.forbidden = forbidden_tokens(sequence);
  choice.mask = sequence.matcher ? allowed_tokens(sequence).data() : nullptr;
  choice.logprobs = params.logprobs.value_or(-1);
  return choice;
}

void Engine::take(Step& step) {
  const auto start = Clock::now();
  const StepOutput output = runner_->take();
  counts_.forward_seconds +=
      output.device_seconds > 0 ? output.device_seconds : step.begin_seconds + seconds_between(start, Clock::now());
  float* logits = output.logits;
  const float* hidden = output.hidden;
  const ChosenToken* chosen = output.chosen;
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    Sequence& sequence = *step.sequences[i];
    const StepSpan& span = step.input.spans[i];
    const int rows = span.wanted == SpanRows::kNone ? 0 : span.wanted == SpanRows::kLast ? 1 : span.count;
    if (span.choice != nullptr) --sequence.unseen;
    if (sequence.is_open) {
      const RequestId id = sequence.job->request.id;
      try {
        if (span.choice != nullptr) advance(sequence, *chosen);
        if (rows > 0) take_rows(sequence, span, rows, logits, hidden);
      } catch (const Error& error) {
        fail(id, error);
      } catch (const std::exception& error) {
        fail(id, internal_error(error.what()));
      }
    }
    if (span.choice != nullptr) ++chosen;
    logits += static_cast<size_t>(rows) * runner_->vocab_size();
    hidden += static_cast<size_t>(rows) * runner_->hidden_size();
  }
  step.sequences.clear();  // ended ones hold their callers' callbacks
}

void Engine::take_rows(Sequence& sequence, const StepSpan& span, int rows, float* logits, const float* hidden) {
  if (span.wanted == SpanRows::kAll) look_at_prompt(sequence, span, logits, hidden);
  if (sequence.pending() > 0) return;
  const size_t last = static_cast<size_t>(rows) - 1;
  advance(sequence, logits + last * runner_->vocab_size(), hidden + last * runner_->hidden_size());
}

// Scores the prompt's rows in this step, or keeps their log probabilities, logits and hidden states. Rows seen before a
// preemption are skipped.
void Engine::look_at_prompt(Sequence& sequence, const StepSpan& span, const float* logits, const float* hidden) {
  const GenerationParams& params = sequence.params();
  const auto vocab = static_cast<size_t>(runner_->vocab_size());
  const auto width = static_cast<size_t>(runner_->hidden_size());
  if (sequence.wants_prompt_logprobs() && span.first_position == 0 && sequence.looked_at == 0) {
    const auto top = static_cast<size_t>(*params.prompt_logprobs);
    sequence.held.prompt_logprobs = {{std::nanf(""), {top, {-1, std::nanf("")}}}};  // nothing predicts the first token
  }
  for (int row = 0; row < span.count; ++row, logits += vocab, hidden += width) {
    const int position = span.first_position + row;
    // The last prompt row is the answer's first: advance() keeps it.
    if (position < sequence.looked_at || position >= sequence.prompt_len - 1) continue;
    sequence.looked_at = position + 1;
    if (params.scores_prompt) {
      sequence.held.score +=
          negative_log_probability(logits, runner_->vocab_size(), sequence.tokens[static_cast<size_t>(position) + 1]);
      ++sequence.held.scored_tokens;
    }
    if (sequence.wants_prompt_logprobs()) {
      const int32_t next = sequence.tokens[static_cast<size_t>(position) + 1];
      sequence.held.prompt_logprobs.push_back(
          log_probabilities(logits, runner_->vocab_size(), next, *params.prompt_logprobs));
    }
    if (params.logits == RowsWanted::kAll)
      sequence.held.logits.insert(sequence.held.logits.end(), logits, logits + vocab);
    if (params.hidden_states == RowsWanted::kAll) {
      sequence.held.hidden_states.insert(sequence.held.hidden_states.end(), hidden, hidden + width);
    }
  }
}

}  // namespace turbomind
