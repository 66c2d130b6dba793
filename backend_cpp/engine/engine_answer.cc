// An answer: its next token, what that means for it, and its end.
#include <algorithm>
#include <string>
#include <utility>

#include "engine/engine.h"

namespace turbomind {

namespace {

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

// Chooses a token from its row of logits.
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
  const int32_t* mask = sequence.matcher ? allowed_tokens(sequence).data() : nullptr;
  const auto draw = static_cast<uint64_t>(sequence.generated());
  const int32_t token = sequence.sampler.sample(logits, draw, forbidden_tokens(sequence), mask);
  if (!may_go_on(sequence, token)) return;
  if (params.logprobs) held.logprobs.push_back(log_probabilities(unchanged.data(), vocab, token, *params.logprobs));
  if (params.logits != RowsWanted::kNone) held.logits.insert(held.logits.end(), unchanged.begin(), unchanged.end());
  if (params.hidden_states != RowsWanted::kNone) {
    held.hidden_states.insert(held.hidden_states.end(), hidden, hidden + runner_->hidden_size());
  }
  go_on(sequence, token);
}

// Takes the token that the runner chose.
void Engine::advance(Sequence& sequence, const ChosenToken& chosen) {
  if (!may_go_on(sequence, chosen.token)) return;
  if (const int top = sequence.params().logprobs.value_or(-1); top >= 0) {
    TokenLogprobs& told = sequence.held.logprobs.emplace_back();
    told.chosen = chosen.log_probability;
    for (int i = 0; i < std::min(top, runner_->vocab_size()); ++i) {
      told.top.emplace_back(chosen.top_tokens[i], chosen.top_log_probabilities[i]);
    }
  }
  go_on(sequence, chosen.token);
}

// False when the answer is finished, and the sequence gone, because `token` ends it. Throws Error where none was found.
bool Engine::may_go_on(Sequence& sequence, int32_t token) {
  if (token < 0) {
    throw internal_error(sequence.matcher ? "no token satisfies the response format and the other limits"
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
  if (!contains(sequence.params().stop_token_ids, token)) return true;
  finish(sequence, FinishReason::kStop, token);
  return false;
}

// Takes a token, and ends the answer when the token, the text or a limit says so.
void Engine::go_on(Sequence& sequence, int32_t token) {
  const GenerationParams& params = sequence.params();
  if (!take_token(sequence, token)) return;
  if (sequence.matcher && !params.logprobs && params.logits == RowsWanted::kNone &&
      params.hidden_states == RowsWanted::kNone) {
    take_forced_tokens(sequence);
  } else {
    emit(sequence, FinishReason::kNone);
  }
}

// Tokens that limits other than a grammar's forbid now.
std::vector<int32_t> Engine::forbidden_tokens(Sequence& sequence) const {
  std::vector<int32_t> forbidden;
  if (sequence.chosen() < sequence.params().min_new_tokens) forbidden = sequence.params().stop_token_ids;
  sequence.bad_text.append_forbidden(forbidden);
  sequence.sampler.append_forbidden(sequence.tokens, forbidden);
  return forbidden;
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
    scheduler_.add(std::make_shared<Sequence>(sequence.job, answer, runner_->vocab_size(), tokens_));
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
  for (const std::shared_ptr<Sequence>& done :
       scheduler_.remove_if([which](const Sequence& s) { return &s == which; })) {
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
  for (const std::shared_ptr<Sequence>& ended : scheduler_.remove_if(is_wanted)) {
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

}  // namespace turbomind
