// One step of the engine: run the model, take its tokens, end what is finished.
#include <algorithm>
#include <cmath>
#include <string>

#include "engine/engine.h"

namespace turbomind {

namespace {

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// The only token that `mask` allows, or -1 when there are none or several.
int32_t only_token(const std::vector<int32_t>& mask) {
  int32_t only = -1;
  for (size_t word = 0; word < mask.size(); ++word) {
    const auto bits = static_cast<uint32_t>(mask[word]);
    if (bits == 0) continue;
    if (only >= 0 || (bits & (bits - 1)) != 0) return -1;
    only = static_cast<int32_t>(word * 32) + __builtin_ctz(bits);
  }
  return only;
}

}  // namespace

// ---- steps ----

void Engine::step() {
  const auto start = Clock::now();
  const std::vector<Sequence*> planned = scheduler_.plan(input_);
  if (planned.empty()) return;
  const auto forward_start = Clock::now();
  const StepOutput output = runner_->forward(input_);
  counts_.forward_seconds += seconds_between(forward_start, Clock::now());
  counts_.tokens_computed += static_cast<int64_t>(input_.tokens.size());
  ++counts_.steps;

  scheduler_.commit();
  // A failing answer takes its siblings with it, so sequences are looked at only while their request is known to be
  // open.
  std::vector<RequestId> ids;
  for (const Sequence* sequence : planned) ids.push_back(sequence->job->request.id);
  std::set<RequestId> failed;
  float* logits = output.logits;
  const float* hidden = output.hidden;
  for (size_t i = 0; i < planned.size(); ++i) {
    const StepSpan& span = input_.spans[i];
    const int rows = span.wanted == SpanRows::kNone ? 0 : span.wanted == SpanRows::kLast ? 1 : span.count;
    if (rows > 0 && failed.count(ids[i]) == 0) {
      try {
        take_rows(*planned[i], span, rows, logits, hidden);
      } catch (const Error& error) {
        failed.insert(ids[i]);
        fail(ids[i], error);
      } catch (const std::exception& error) {
        failed.insert(ids[i]);
        fail(ids[i], internal_error(error.what()));
      }
    }
    logits += static_cast<size_t>(rows) * runner_->vocab_size();
    hidden += static_cast<size_t>(rows) * runner_->hidden_size();
  }
  counts_.step_seconds += seconds_between(start, Clock::now());
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

// Samples one token, and ends the answer when that token, the text or a limit says so.
void Engine::advance(Sequence& sequence, float* logits, const float* hidden) {
  const GenerationParams& params = sequence.params();
  const int vocab = runner_->vocab_size();
  if (params.generates_nothing()) {
    finish(sequence, params.scores_prompt ? FinishReason::kStop : FinishReason::kLength);
    return;
  }
  Output& held = sequence.held;
  std::vector<float> unchanged;  // for what is reported of the model's own distribution
  if (params.logprobs || params.logits != RowsWanted::kNone) unchanged.assign(logits, logits + vocab);
  if (params.logits_hook) params.logits_hook(sequence.tokens, logits, vocab);
  const int32_t* mask = nullptr;
  if (sequence.matcher) {
    mask = allowed_tokens(sequence).data();
  }
  forbidden_.clear();
  if (sequence.generated() < params.min_new_tokens) forbidden_ = params.stop_token_ids;
  sequence.bad_text.append_forbidden(forbidden_);
  const int32_t token =
      sequence.sampler.sample(logits, sequence.tokens, static_cast<uint64_t>(sequence.generated()), forbidden_, mask);
  if (token < 0) {
    throw internal_error(mask != nullptr ? "no token satisfies the response format and the other limits"
                                         : "the model produced logits that are not numbers, or no token is allowed");
  }
  const auto now = Clock::now();
  if (sequence.generated() == 0) {
    ++counts_.first_tokens;
    counts_.first_token_seconds += seconds_between(sequence.job->accepted, now);
    start_siblings(sequence);
  } else {
    ++counts_.later_tokens;
    counts_.later_token_seconds += seconds_between(sequence.last_token, now);
  }
  sequence.last_token = now;
  if (contains(params.stop_token_ids, token)) {
    finish(sequence, FinishReason::kStop, token);
    return;
  }
  if (params.logprobs) held.logprobs.push_back(log_probabilities(unchanged.data(), vocab, token, *params.logprobs));
  if (params.logits != RowsWanted::kNone) held.logits.insert(held.logits.end(), unchanged.begin(), unchanged.end());
  if (params.hidden_states != RowsWanted::kNone) {
    held.hidden_states.insert(held.hidden_states.end(), hidden, hidden + runner_->hidden_size());
  }
  if (!take_token(sequence, token)) return;
  if (sequence.matcher && !params.logprobs && params.logits == RowsWanted::kNone &&
      params.hidden_states == RowsWanted::kNone) {
    take_forced_tokens(sequence);
  } else {
    emit(sequence, FinishReason::kNone);
  }
}

// Appends a token to the answer. False when the answer is finished, and the sequence gone, because of it.
bool Engine::take_token(Sequence& sequence, int32_t token) {
  const GenerationParams& params = sequence.params();
  sequence.tokens.push_back(token);
  sequence.sampler.note_answer(token);
  sequence.held.token_ids.push_back(token);
  ++counts_.tokens_out;
  if (sequence.matcher) {
    if (!sequence.matcher->accept(token)) throw internal_error("a token outside the response format was chosen");
    sequence.mask.clear();
  }
  sequence.bad_text.advance(tokens_.bytes(token));
  const bool is_hidden = params.skip_special_tokens && tokens_.is_special(token);
  const bool may_stop = sequence.generated() >= params.min_new_tokens;
  if (!is_hidden && sequence.text.append(tokens_.bytes(token), may_stop)) {
    finish(sequence, FinishReason::kStop);
    return false;
  }
  if (sequence.matcher && sequence.matcher->is_finished()) {
    finish(sequence, FinishReason::kStop);
    return false;
  }
  if (sequence.generated() >= params.max_new_tokens) {
    finish(sequence, FinishReason::kLength);
    return false;
  }
  return true;
}

const std::vector<int32_t>& Engine::allowed_tokens(Sequence& sequence) const {
  if (sequence.mask.empty()) {
    sequence.mask.resize(static_cast<size_t>(runner_->vocab_size() + 31) / 32);
    sequence.matcher->fill_mask(sequence.mask);
  }
  return sequence.mask;
}

// Where the grammar leaves one token only, takes it without running the model; the next step computes all of them at
// once.
void Engine::take_forced_tokens(Sequence& sequence) {
  while (true) {
    const int32_t token = only_token(allowed_tokens(sequence));
    if (token < 0 || contains(sequence.params().stop_token_ids, token)) break;
    if (!take_token(sequence, token)) return;
  }
  emit(sequence, FinishReason::kNone);
}

// The other answers to the same prompt begin when the first has computed it, and find its blocks.
void Engine::start_siblings(const Sequence& sequence) {
  if (sequence.index != 0) return;
  sequence.job->open_answers = sequence.params().n;
  for (int answer = 1; answer < sequence.params().n; ++answer) {
    scheduler_.add(std::make_unique<Sequence>(sequence.job, answer, runner_->vocab_size(), tokens_));
  }
}

// ---- ends ----

// Moves text that may be shown to the sequence's held output and, unless that waits for the whole answer, sends it off.
void Engine::emit(Sequence& sequence, FinishReason finish, int32_t stop_token) {
  Output& held = sequence.held;
  held.text += finish == FinishReason::kNone ? sequence.text.take() : sequence.text.take_rest();
  if (finish == FinishReason::kNone && !sequence.params().stream) return;
  const Job& job = *sequence.job;
  held.request = job.request.id;
  held.index = sequence.index;
  held.finish = finish;
  held.is_final = finish != FinishReason::kNone && job.open_answers == 0;
  held.input_token_len = sequence.prompt_len - job.history_len;
  held.history_token_len = job.history_len;
  held.generate_token_len = sequence.generated();
  held.stop_token = stop_token;
  held.prompt = job.prompt;
  outputs_.emplace_back(job.request.on_output, std::exchange(held, {}));
}

// Ends an answer; the sequence is gone afterwards.
void Engine::finish(Sequence& sequence, FinishReason reason, int32_t stop_token) {
  const Sequence* which = &sequence;
  for (std::unique_ptr<Sequence>& done : scheduler_.remove_if([which](const Sequence& s) { return &s == which; })) {
    Job& job = *done->job;
    if (--job.open_answers == 0) {
      ++(reason == FinishReason::kCancelled ? counts_.cancelled : counts_.completed);
      close_job(job, done->tokens, stop_token);
    }
    emit(*done, reason, stop_token);
  }
}

void Engine::fail(RequestId id, const Error& error) {
  end_where([id](const Sequence& s) { return s.job->request.id == id; }, FinishReason::kError, &error);
}

// Ends all answers of the requests that `is_wanted` picks.
void Engine::end_where(const std::function<bool(const Sequence&)>& is_wanted, FinishReason reason, const Error* error) {
  for (std::unique_ptr<Sequence>& ended : scheduler_.remove_if(is_wanted)) {
    Job& job = *ended->job;
    // Siblings that never began are counted as open only once the first answer has started them.
    if (--job.open_answers == 0) {
      ++(error != nullptr ? counts_.failed : counts_.cancelled);
      close_job(job, ended->tokens, -1);
    }
    if (error != nullptr) {
      ended->held.error_code = error->code();
      ended->held.error = error->what();
    }
    emit(*ended, reason);
  }
}

void Engine::answer_at_once(const Request& request, FinishReason reason, const Error* error) {
  Output output;
  output.request = request.id;
  output.finish = reason;
  output.is_final = true;
  if (error != nullptr) {
    output.error_code = error->code();
    output.error = error->what();
  }
  outputs_.emplace_back(request.on_output, std::move(output));
}

// The last answer of a request has ended: its session takes the tokens, or goes.
void Engine::close_job(Job& job, const std::vector<int32_t>& tokens, int32_t stop_token) {
  if (job.request.deadline) {
    if (const auto it = deadlines_.find(*job.request.deadline); it != deadlines_.end()) deadlines_.erase(it);
  }
  if (!job.request.session) return;
  const SessionParams& params = *job.request.session;
  SessionTable::Session* session = sessions_.find(params.id);
  if (session == nullptr || session->running != job.request.id) return;
  session->running = 0;
  session->last_used = Clock::now();
  session->tokens = tokens;
  if (stop_token >= 0) session->tokens.push_back(stop_token);
  if (params.end) sessions_.erase(params.id);
}

void Engine::publish_stats() {
  counts_.running = scheduler_.running_count();
  counts_.waiting = scheduler_.waiting_count();
  counts_.sessions = static_cast<int>(sessions_.size());
  counts_.blocks_total = blocks_.block_count();
  counts_.blocks_used = blocks_.referenced_count();
  counts_.blocks_idle = blocks_.idle_count();
  counts_.evictions = blocks_.eviction_count();
  counts_.preemptions = scheduler_.preemption_count();
  counts_.tokens_matched = scheduler_.matched_token_count();
  const std::lock_guard lock(mu_);
  stats_ = counts_;
}

}  // namespace turbomind
