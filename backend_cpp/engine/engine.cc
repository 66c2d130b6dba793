#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <string>

#include "base/error.h"

namespace turbomind {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

uint64_t draw_seed() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

bool contains(const std::vector<int32_t>& ids, int32_t id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); }

}  // namespace

Engine::Engine(const EngineConfig& config, std::unique_ptr<ModelRunner> runner, TokenTable tokens)
    : config_(config),
      runner_(std::move(runner)),
      tokens_(std::move(tokens)),
      blocks_(config.block_count),
      scheduler_({config.max_batch_size, config.max_step_tokens, config.block_len}, blocks_) {
  // A sequence that fits alone always completes, so none may be longer than the whole cache.
  config_.session_len = std::min(config_.session_len, config_.block_count * config_.block_len);
  runner_->allocate_cache(config_.block_count, config_.block_len);
  publish_stats();
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  {
    const std::lock_guard lock(mu_);
    inbox_.is_stopping = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Engine::submit(Request request) {
  GenerationParams& params = request.params;
  params.validate(runner_->vocab_size());
  const auto prompt_len = static_cast<int64_t>(request.input_ids.size());
  if (prompt_len == 0) throw invalid_argument("input_ids must hold at least one token");
  for (const int32_t token : request.input_ids) {
    if (token < 0 || token >= runner_->vocab_size()) {
      throw invalid_argument("input_ids must be tokens of the vocabulary (0 to " + std::to_string(runner_->vocab_size() - 1) +
                             "), got " + std::to_string(token));
    }
  }
  if (params.max_new_tokens > config_.session_len) {
    throw invalid_argument("max_new_tokens must be at most the session length of " + std::to_string(config_.session_len) +
                           " tokens, got " + std::to_string(params.max_new_tokens));
  }
  if (prompt_len >= config_.session_len) {
    throw invalid_argument("the prompt must be shorter than the session length of " + std::to_string(config_.session_len) +
                           " tokens, got " + std::to_string(prompt_len));
  }
  const int left = config_.session_len - static_cast<int>(prompt_len);
  params.max_new_tokens = params.max_new_tokens == kAllThatIsLeft ? left : std::min(params.max_new_tokens, left);
  params.min_new_tokens = std::min(params.min_new_tokens, params.max_new_tokens);
  if (!params.ignore_eos) {
    params.stop_token_ids.insert(params.stop_token_ids.end(), config_.eos_token_ids.begin(), config_.eos_token_ids.end());
  }
  // A special token does not show up in the text, so as a stop string it is matched by id.
  std::erase_if(params.stop_words, [&](const std::string& word) {
    const int32_t token = tokens_.find_special(word);
    if (token >= 0) params.stop_token_ids.push_back(token);
    return token >= 0;
  });
  {
    const std::lock_guard lock(mu_);
    if (inbox_.is_stopping) throw Error(ErrorCode::kUnavailable, "the engine is shutting down");
    if (!is_healthy_) throw Error(ErrorCode::kUnavailable, "the engine has stopped after a device fault");
    const auto queued = inbox_.submitted.size() + static_cast<size_t>(stats_.waiting);
    if (queued >= static_cast<size_t>(config_.max_waiting)) {
      throw Error(ErrorCode::kUnavailable, "overloaded: " + std::to_string(queued) + " requests are waiting already");
    }
    inbox_.submitted.push_back(std::move(request));
  }
  wake_.notify_one();
}

void Engine::cancel(RequestId id) {
  {
    const std::lock_guard lock(mu_);
    inbox_.cancelled.push_back(id);
  }
  wake_.notify_one();
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(mu_);
  return stats_;
}

void Engine::run() {
  while (take_inbox()) {
    try {
      step();
    } catch (const std::exception& error) {
      is_healthy_ = false;
      finish_all(FinishReason::kError, std::string("the engine stopped: ") + error.what());
    }
    publish_stats();
    output_queue_.push(std::exchange(outputs_, {}));
  }
  finish_all(FinishReason::kCancelled, {});
  publish_stats();
  output_queue_.push(std::exchange(outputs_, {}));
}

// Waits for work and takes in messages. False when the engine is to stop.
bool Engine::take_inbox() {
  Inbox inbox;
  {
    std::unique_lock lock(mu_);
    wake_.wait(lock, [this] {
      return inbox_.is_stopping || !inbox_.submitted.empty() || !inbox_.cancelled.empty() ||
             scheduler_.running_count() + scheduler_.waiting_count() > 0;
    });
    inbox = std::move(inbox_);
    inbox_ = {};
    inbox_.is_stopping = inbox.is_stopping;
    stats_.waiting += static_cast<int>(inbox.submitted.size());
  }
  for (Request& request : inbox.submitted) {
    counts_.tokens_in += static_cast<int64_t>(request.input_ids.size());
    const std::optional<uint64_t>& wanted = request.params.random_seed;
    const uint64_t seed = wanted ? *wanted : draw_seed();
    scheduler_.add(std::make_unique<Sequence>(std::move(request), seed, runner_->vocab_size()));
  }
  for (const RequestId id : inbox.cancelled) finish(id, FinishReason::kCancelled);
  if (!is_healthy_) finish_all(FinishReason::kError, "the engine has stopped after a device fault");
  return !inbox.is_stopping;
}

void Engine::step() {
  const auto start = Clock::now();
  const std::vector<Sequence*>& planned = scheduler_.plan(input_);
  if (planned.empty()) return;
  const auto forward_start = Clock::now();
  float* logits = runner_->forward(input_);
  counts_.forward_seconds += seconds_since(forward_start);

  // Finishing a sequence destroys it, so remember which ones want a token first.
  std::vector<Sequence*> ready;
  for (size_t i = 0; i < planned.size(); ++i) {
    if (input_.spans[i].wants_logits) ready.push_back(planned[i]);
  }
  scheduler_.commit();
  for (Sequence* sequence : ready) {
    advance(*sequence, logits);
    logits += runner_->vocab_size();
  }
  ++counts_.steps;
  counts_.step_seconds += seconds_since(start);
}

// Samples one token, and ends the sequence when that token, the text or a limit says so.
void Engine::advance(Sequence& sequence, float* logits) {
  const GenerationParams& params = sequence.request.params;
  const bool may_stop = sequence.generated() >= params.min_new_tokens;
  static const std::vector<int32_t> kNone;
  const int32_t token = sequence.sampler.sample(logits, static_cast<uint64_t>(sequence.generated()),
                                                may_stop ? kNone : params.stop_token_ids);
  if (token < 0) {
    finish(sequence.request.id, FinishReason::kError, "the model produced logits that are not numbers");
    return;
  }
  if (contains(params.stop_token_ids, token)) {
    finish(sequence.request.id, FinishReason::kStop);
    return;
  }
  sequence.tokens.push_back(token);
  sequence.sampler.note(token);
  sequence.held.token_ids.push_back(token);
  ++counts_.tokens_out;
  const bool is_hidden = params.skip_special_tokens && tokens_.is_special(token);
  const bool may_stop_now = sequence.generated() >= params.min_new_tokens;
  if (!is_hidden && sequence.text.append(tokens_.bytes(token), may_stop_now)) {
    finish(sequence.request.id, FinishReason::kStop);
  } else if (sequence.generated() >= params.max_new_tokens) {
    finish(sequence.request.id, FinishReason::kLength);
  } else {
    emit(sequence, FinishReason::kNone);
  }
}

// Moves text that may be shown to the sequence's held output and, unless that waits for the whole answer, sends it off.
void Engine::emit(Sequence& sequence, FinishReason finish, std::string error) {
  Output& held = sequence.held;
  held.text += finish == FinishReason::kNone ? sequence.text.take() : sequence.text.take_rest();
  if (finish == FinishReason::kNone && !sequence.request.params.stream) return;
  held.request = sequence.request.id;
  held.finish = finish;
  held.input_token_len = sequence.prompt_len;
  held.generate_token_len = sequence.generated();
  held.error = std::move(error);
  outputs_.emplace_back(sequence.request.on_output, std::exchange(held, {}));
}

void Engine::finish(RequestId id, FinishReason reason, std::string error) {
  std::unique_ptr<Sequence> sequence = scheduler_.remove(id);
  if (!sequence) return;
  switch (reason) {
    case FinishReason::kCancelled: ++counts_.cancelled; break;
    case FinishReason::kError: ++counts_.failed; break;
    default: ++counts_.completed;
  }
  emit(*sequence, reason, std::move(error));
}

void Engine::finish_all(FinishReason reason, const std::string& error) {
  for (std::unique_ptr<Sequence>& sequence : scheduler_.remove_all()) {
    ++(reason == FinishReason::kError ? counts_.failed : counts_.cancelled);
    emit(*sequence, reason, error);
  }
}

void Engine::publish_stats() {
  counts_.running = scheduler_.running_count();
  counts_.waiting = scheduler_.waiting_count();
  counts_.blocks_total = blocks_.block_count();
  counts_.blocks_used = blocks_.used_block_count();
  counts_.preemptions = scheduler_.preemption_count();
  const std::lock_guard lock(mu_);
  stats_ = counts_;
}

}  // namespace turbomind
