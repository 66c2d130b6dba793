#include "engine/engine.h"

#include <algorithm>
#include <random>
#include <string>

namespace turbomind {

namespace {

uint64_t draw_seed() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

}  // namespace

Engine::Engine(const EngineConfig& config, std::unique_ptr<ModelRunner> runner, TokenTable tokens,
               std::unique_ptr<GrammarCompiler> compiler)
    : config_(config),
      runner_(std::move(runner)),
      tokens_(std::move(tokens)),
      blocks_(config.block_count, config.block_len),
      scheduler_({config.max_batch_size, config.max_step_tokens, runner_->window()}, blocks_),
      sessions_(config.session_idle_limit, config.max_sessions) {
  // A sequence that fits alone always completes, so none may be longer than the whole cache.
  if (scheduler_.most_blocks(config_.session_len) > config_.block_count) {
    config_.session_len = std::min(config_.session_len, config_.block_count * config_.block_len);
  }
  runner_->allocate_cache(config_.block_count, config_.block_len);
  publish_stats();
  if (compiler) {
    grammar_queue_ =
        std::make_unique<GrammarQueue>(std::move(compiler), [this](Submission&& ready) { post(std::move(ready)); });
  }
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  {
    const std::lock_guard lock(mu_);
    inbox_.is_stopping = true;
  }
  grammar_queue_.reset();  // its requests come back or are dropped before the step thread says goodbye
  wake_.notify_one();
  thread_.join();
}

// ---- from any thread ----

// Refuses what is wrong with a request, and completes what it leaves to the model.
void Engine::check(Request& request) const {
  GenerationParams& params = request.params;
  params.validate(runner_->vocab_size());
  const bool may_generate_nothing = request.session.has_value() || params.scores_prompt || params.prompt_logprobs;
  if (params.max_new_tokens == 0 && !may_generate_nothing) throw invalid_argument("max_new_tokens must be >= 1, got 0");
  if (request.input_ids.empty() && !request.session) throw invalid_argument("input_ids must hold at least one token");
  for (const int32_t token : request.input_ids) {
    if (token < 0 || token >= runner_->vocab_size()) {
      throw invalid_argument("input_ids must be tokens of the vocabulary (0 to " +
                             std::to_string(runner_->vocab_size() - 1) + "), got " + std::to_string(token));
    }
  }
  if (params.max_new_tokens > config_.session_len) {
    throw invalid_argument("max_new_tokens must be at most the session length of " +
                           std::to_string(config_.session_len) + " tokens, got " +
                           std::to_string(params.max_new_tokens));
  }
  const auto prompt_len = static_cast<int64_t>(request.input_ids.size());
  if (prompt_len + (params.generates_nothing() ? 0 : 1) > config_.session_len) {
    throw Error(ErrorCode::kTooLong, "the prompt must be shorter than the session length of " +
                                         std::to_string(config_.session_len) + " tokens, got " +
                                         std::to_string(prompt_len));
  }
  if (params.n > 1 && (request.session || params.generates_nothing())) {
    throw invalid_argument("n must be 1 in a session and where nothing is generated, got " + std::to_string(params.n));
  }
  if (request.session && params.prompt_logprobs) throw invalid_argument("prompt_logprobs cannot be had in a session");
  if (!params.response_format.empty() && !grammar_queue_) {
    throw Error(ErrorCode::kUnavailable, "response_format is not available: xgrammar was not found");
  }
  if (!params.ignore_eos) {
    params.stop_token_ids.insert(params.stop_token_ids.end(), config_.eos_token_ids.begin(),
                                 config_.eos_token_ids.end());
  }
  // A special token does not show up in the text, so as a stop string it is matched by id.
  std::erase_if(params.stop_words, [&](const std::string& word) {
    const int32_t token = tokens_.find_special(word);
    if (token >= 0) params.stop_token_ids.push_back(token);
    return token >= 0;
  });
}

void Engine::submit(Request request) {
  check(request);
  const bool needs_grammar = !request.params.response_format.empty();
  {
    const std::lock_guard lock(mu_);
    if (inbox_.is_stopping) throw Error(ErrorCode::kUnavailable, "the engine is shutting down");
    if (!is_healthy_) throw Error(ErrorCode::kUnavailable, "the engine has stopped after a device fault");
    const size_t queued = inbox_.submitted.size() + compiling_.size() + static_cast<size_t>(stats_.waiting);
    if (queued >= static_cast<size_t>(config_.max_waiting)) {
      throw Error(ErrorCode::kUnavailable, "overloaded: " + std::to_string(queued) + " requests are waiting already");
    }
    if (needs_grammar) {
      compiling_.insert(request.id);
    } else {
      inbox_.submitted.push_back({std::move(request), nullptr, std::nullopt});
    }
  }
  if (needs_grammar) {
    grammar_queue_->add(std::move(request));
  } else {
    wake_.notify_one();
  }
}

void Engine::post(Submission&& submission) {
  {
    const std::lock_guard lock(mu_);
    const RequestId id = submission.request.id;
    compiling_.erase(id);
    if (abandoned_.erase(id) > 0) inbox_.cancelled.push_back(id);
    inbox_.submitted.push_back(std::move(submission));
  }
  wake_.notify_one();
}

void Engine::cancel(RequestId id) {
  {
    const std::lock_guard lock(mu_);
    if (compiling_.count(id) > 0) {
      abandoned_.insert(id);
    } else {
      inbox_.cancelled.push_back(id);
    }
  }
  wake_.notify_one();
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(mu_);
  return stats_;
}

// ---- on the step thread: messages ----

void Engine::run() {
  while (take_inbox()) {
    try {
      step();
    } catch (const std::exception& error) {
      is_healthy_ = false;
      is_under_way_ = false;
      for (Step& step : steps_) step.sequences.clear();
      const Error fault(ErrorCode::kUnavailable, std::string("the engine stopped: ") + error.what());
      end_where([](const Sequence&) { return true; }, FinishReason::kError, &fault);
    }
    publish_stats();
    output_queue_.push(std::exchange(outputs_, {}));
  }
  end_where([](const Sequence&) { return true; }, FinishReason::kCancelled, nullptr);
  publish_stats();
  output_queue_.push(std::exchange(outputs_, {}));
}

// Waits for work and takes in messages. False when the engine is to stop.
bool Engine::take_inbox() {
  Inbox inbox;
  {
    std::unique_lock lock(mu_);
    wake_.wait(lock, [this] {
      return inbox_.is_stopping || !inbox_.submitted.empty() || !inbox_.cancelled.empty() || is_under_way_ ||
             scheduler_.running_count() + scheduler_.waiting_count() > 0;
    });
    inbox = std::move(inbox_);
    inbox_ = {};
    inbox_.is_stopping = inbox.is_stopping;
    stats_.waiting += static_cast<int>(inbox.submitted.size());
  }
  for (const SessionTable::Session& gone : sessions_.expire(Clock::now())) forget_session(gone);
  for (const Submission& submission : inbox.submitted) accept(submission);
  for (const RequestId id : inbox.cancelled) {
    end_where([id](const Sequence& s) { return s.job->request.id == id; }, FinishReason::kCancelled, nullptr);
  }
  end_overdue();
  if (!is_healthy_) {
    const Error fault(ErrorCode::kUnavailable, "the engine has stopped after a device fault");
    end_where([](const Sequence&) { return true; }, FinishReason::kError, &fault);
  }
  return !inbox.is_stopping;
}

void Engine::accept(const Submission& submission) {
  if (submission.failure) {
    refuse(submission.request, *submission.failure);
    return;
  }
  try {
    if (control_session(submission.request)) return;
    std::shared_ptr<Job> job = make_job(submission);
    if (const GenerationParams& params = job->request.params;
        params.max_new_tokens == 0 && !params.scores_prompt && !params.prompt_logprobs) {
      // Nothing to generate: the session takes the tokens, and computes them when it goes on.
      ++counts_.completed;
      close_job(*job, *job->prompt, -1);
      Output output;
      output.request = job->request.id;
      output.finish = FinishReason::kStop;
      output.is_final = true;
      output.input_token_len = static_cast<int>(job->prompt->size()) - job->history_len;
      output.history_token_len = job->history_len;
      output.prompt = job->prompt;
      outputs_.emplace_back(job->request.on_output, std::move(output));
      return;
    }
    counts_.tokens_in += static_cast<int64_t>(job->prompt->size());
    if (job->request.deadline) deadlines_.insert(*job->request.deadline);
    scheduler_.add(std::make_shared<Sequence>(std::move(job), 0, runner_->vocab_size(), tokens_));
  } catch (const Error& error) {
    refuse(submission.request, error);
  } catch (const std::exception& error) {
    refuse(submission.request, internal_error(error.what()));
  }
}

// Answers a request that could not begin, and leaves its session as it was.
void Engine::refuse(const Request& request, const Error& error) {
  if (request.session) {
    SessionTable::Session* session = sessions_.find(request.session->id);
    if (session != nullptr && session->running == request.id) session->running = 0;
  }
  ++counts_.failed;
  answer_at_once(request, FinishReason::kError, &error);
}

std::shared_ptr<Job> Engine::make_job(const Submission& submission) {
  auto job = std::make_shared<Job>();
  job->request = submission.request;
  job->grammar = submission.grammar;
  job->arrival = next_arrival_++;
  job->accepted = Clock::now();
  GenerationParams& params = job->request.params;
  job->seed = params.random_seed ? *params.random_seed : draw_seed();
  job->scope = config_.enable_prefix_caching ? 0 : next_scope_++;
  job->keeps_blocks = config_.enable_prefix_caching;
  std::vector<int32_t> prompt = begin_session(*job);
  prompt.insert(prompt.end(), job->request.input_ids.begin(), job->request.input_ids.end());
  const int left = config_.session_len - static_cast<int>(prompt.size());
  params.max_new_tokens = params.max_new_tokens == kAllThatIsLeft ? left : std::min(params.max_new_tokens, left);
  params.min_new_tokens = std::min(params.min_new_tokens, params.max_new_tokens);
  job->may_match = !params.looks_at_prompt();
  // Blocks are shared only by prompts that the model rotates alike.
  job->scope |= static_cast<uint64_t>(runner_->cache_variant(static_cast<int>(prompt.size()))) << 32;
  job->prompt = std::make_shared<const std::vector<int32_t>>(std::move(prompt));
  return job;
}

// Returns the session's tokens, and marks it as running. Throws Error.
std::vector<int32_t> Engine::begin_session(Job& job) {
  if (!job.request.session) return {};
  const SessionParams& params = *job.request.session;
  const SessionTable::Session* old = sessions_.find(params.id);
  if (old != nullptr && params.start && old->running == 0) forget_session(*old);
  SessionTable::Session& session = sessions_.begin(params, job.request.id, job.scope);
  const size_t total = session.tokens.size() + job.request.input_ids.size();
  if (total + 1 > static_cast<size_t>(config_.session_len) || total == 0) {
    session.running = 0;
    if (session.tokens.empty()) sessions_.erase(params.id);
    if (total == 0) throw invalid_argument("input_ids must hold at least one token");
    throw Error(ErrorCode::kTooLong, "history and prompt must be shorter than the session length of " +
                                         std::to_string(config_.session_len) + " tokens, got " + std::to_string(total));
  }
  job.scope = session.scope;
  job.keeps_blocks = config_.enable_prefix_caching || !params.end;
  job.history_len = static_cast<int>(session.tokens.size());
  return session.tokens;
}

// Answers a request that only stops or ends a session. False when it is none of these.
bool Engine::control_session(const Request& request) {
  if (!request.session) return false;
  const SessionParams& params = *request.session;
  const bool only_ends = params.end && !params.start && request.params.max_new_tokens == 0;
  if (!params.stop && !only_ends) return false;
  SessionTable::Session* session = sessions_.find(params.id);
  if (session == nullptr) {
    throw Error(ErrorCode::kUnknownSession, "session " + std::to_string(params.id) + " does not exist");
  }
  if (params.stop && session->running == 0 && !params.end) {
    throw Error(ErrorCode::kSessionIdle, "session " + std::to_string(params.id) + " has no running request to stop");
  }
  if (!params.stop && session->running != 0) {
    throw Error(ErrorCode::kSessionBusy,
                "session " + std::to_string(params.id) + " has a running request; stop it first");
  }
  if (const RequestId running = session->running; running != 0) {
    end_where([running](const Sequence& s) { return s.job->request.id == running; }, FinishReason::kCancelled, nullptr);
  }
  if (params.end) {
    session = sessions_.find(params.id);
    if (session != nullptr) forget_session(*session);
    sessions_.erase(params.id);
  }
  ++counts_.completed;
  answer_at_once(request, FinishReason::kStop, nullptr);
  return true;
}

// Gives up the blocks that only this session could use again.
void Engine::forget_session(const SessionTable::Session& session) {
  if (config_.enable_prefix_caching) return;
  std::vector<int32_t> blocks;
  blocks_.match(session.scope, session.tokens, static_cast<int>(session.tokens.size()), blocks);
  blocks_.release_and_forget(blocks);
}

void Engine::end_overdue() {
  const auto now = Clock::now();
  if (deadlines_.empty() || *deadlines_.begin() > now) return;
  const Error late(ErrorCode::kTimeout, "the request did not finish in the time it was given");
  end_where([now](const Sequence& s) { return s.job->request.deadline && *s.job->request.deadline <= now; },
            FinishReason::kError, &late);
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
