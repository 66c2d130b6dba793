#include "engine/engine.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

namespace turbomind {

namespace {

// Allocates the runner's cache. A sequence that fits alone always completes, so none may be longer than the whole
// cache; where a window bounds what a sequence holds, every length fits.
EngineConfig prepare(EngineConfig config, ModelRunner& runner) {
  const SchedulerConfig limits{config.max_batch_size, config.max_step_tokens, runner.window(),
                               runner.pictures().needs_whole};
  if (most_blocks(config.session_len, config.block_len, limits) > config.block_count) {
    config.session_len = std::min(config.session_len, config.block_count * config.block_len);
  }
  runner.allocate_cache(config.block_count, config.block_len);
  return config;
}

}  // namespace

Engine::Engine(const EngineConfig& config, std::unique_ptr<ModelRunner> runner, TokenTable tokens,
               std::unique_ptr<GrammarCompiler> compiler)
    : config_(prepare(config, *runner)),
      runner_(std::move(runner)),
      tokens_(std::move(tokens)),
      limits_{runner_->vocab_size(), config_.session_len,
              runner_->pictures(),   config_.max_step_tokens - config_.max_batch_size,
              compiler != nullptr,   config_.eos_token_ids},
      embedding_memory_(config_.embedding_bytes, "the embeddings of open requests and of sessions"),
      inbox_(config_.max_waiting),
      core_(config_, *runner_, tokens_),
      stats_(core_.stats()) {
  if (compiler) {
    compiler->notify([this] { inbox_.wake(); });
    grammar_queue_ = std::make_unique<GrammarQueue>(
        std::move(compiler), [this](Submission&& compiled) { inbox_.deliver(std::move(compiled)); });
  }
  thread_ = std::thread([this] { run(); });
}

void Engine::cancel(RequestId id) {
  inbox_.cancel(id);
  if (grammar_queue_) grammar_queue_->cancel(id);
}

Engine::~Engine() {
  inbox_.close();
  thread_.join();
}

void Engine::submit(Request request) {
  check_request(request, limits_, tokens_);
  if (!is_healthy_) throw Error(ErrorCode::kUnavailable, "the engine has stopped after a device fault");
  if (!request.embeddings.empty()) hold_embeddings(request);
  if (request.params.response_format.empty()) {
    inbox_.submit(std::move(request));
  } else {
    inbox_.expect(request);
    grammar_queue_->add(std::move(request));
  }
}

void Engine::hold_embeddings(Request& request) const {
  struct Held {
    std::shared_ptr<const EmbeddingRows> rows;
    std::shared_ptr<const void> share;
  };
  size_t bytes = 0;
  for (const EmbeddingRange& range : request.embeddings) bytes += range.rows->data.size();
  const std::shared_ptr<const void> share = embedding_memory_.take(bytes);
  for (EmbeddingRange& range : request.embeddings) {
    const auto held = std::make_shared<const Held>(Held{std::move(range.rows), share});
    range.rows = {held, held->rows.get()};
  }
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(mu_);
  return stats_;
}

// ---- the step thread ----

void Engine::run() {
  for (bool is_closed = false; !is_closed;) {
    Inbox::Messages messages = inbox_.take(!core_.is_idle(), core_.next_deadline());
    is_closed = messages.is_closed;
    add(std::move(messages));
    if (is_closed) {
      core_.end_all(nullptr);
    } else {
      step();
    }
    if (config_.checks_invariants) check_when_idle();
    publish();
  }
}

void Engine::add(Inbox::Messages&& messages) {
  for (Submission& submission : messages.submitted) core_.add(std::move(submission));
  for (const RequestId id : messages.cancelled) core_.cancel(id);
  for (const Inbox::Abandoned& request : messages.abandoned) core_.answer_abandoned(request);
  core_.end_overdue(Clock::now());
  if (!is_healthy_) fail(Error(ErrorCode::kUnavailable, "the engine has stopped after a device fault"));
}

void Engine::step() {
  try {
    core_.step();
  } catch (const std::exception& error) {
    fail(Error(ErrorCode::kUnavailable, std::string("the engine stopped: ") + error.what()));
  }
}

void Engine::fail(const Error& fault) {
  is_healthy_ = false;
  core_.end_all(&fault);
}

// A broken invariant is a bug, and whatever comes after it may be wrong: nothing goes on.
void Engine::check_when_idle() const {
  if (core_.has_work()) return;
  try {
    core_.check_invariants();
  } catch (const Error& error) {
    std::fprintf(stderr, "the engine is not as it should be when idle: %s\n", error.what());
    std::abort();
  }
}

void Engine::publish() {
  EngineStats stats = core_.stats();
  inbox_.set_waiting(stats.waiting);
  {
    const std::lock_guard lock(mu_);
    stats_ = stats;
  }
  output_queue_.push(core_.take_outputs());
}

}  // namespace turbomind
