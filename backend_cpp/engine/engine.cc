#include "engine/engine.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

namespace turbomind {

namespace {

// Between two attempts to start a runner again.
constexpr std::chrono::milliseconds kFirstDelay{500};
constexpr std::chrono::milliseconds kMaxDelay{30'000};

// Engines of encoders in this process. A text of theirs takes milliseconds, so others let them go first on the
// processors that they share.
std::atomic<int> encoder_count{0};

// Allocates the runner's cache. A sequence that fits alone always completes, so none may be longer than the whole
// cache; where a window bounds what a sequence holds, every length fits.
EngineConfig prepare(EngineConfig config, ModelRunner& runner, ModelRunner* draft_runner) {
  const StepLimits step_limits{config.max_batch_size, config.session_len, config.block_len};
  if (config.plan.groups.empty()) config.plan = plan_caches(runner, draft_runner, step_limits);
  config.plan.expect_a_sequence(config.page_count, config.max_step_tokens);
  config.session_len = config.plan.max_tokens(config.page_count, config.max_step_tokens, config.session_len);
  const CacheSize size{config.page_count, config.host_page_count};
  std::byte* pages = runner.allocate_cache({config.plan, size, 0});
  if (draft_runner != nullptr) {
    const int first = config.plan.group_of(MemoryKind::kDraft);
    draft_runner->allocate_cache({config.plan, size, first, pages});
  }
  const StepLimits limits{config.max_batch_size, config.session_len, config.block_len};
  runner.prepare_decoding(limits);
  if (draft_runner != nullptr) draft_runner->prepare_decoding(limits);
  return config;
}

}  // namespace

CachePlan plan_caches(const ModelRunner& runner, const ModelRunner* draft_runner, const StepLimits& limits) {
  std::vector<CacheGroup> groups = runner.cache_groups(limits);
  if (draft_runner != nullptr) {
    for (CacheGroup& group : draft_runner->cache_groups(limits)) {
      group.kind =
          MemoryKind::kDraft;  // whatever its layers look at: what a window has passed may be drafted from again
      group.is_separate_pool = !runner.traits().shares_cache;
      groups.push_back(std::move(group));
    }
  }
  return plan_cache(limits.block_len, std::move(groups));
}

Engine::Engine(const EngineConfig& config, std::unique_ptr<ModelRunner> runner, TokenTable tokens,
               std::unique_ptr<GrammarCompiler> compiler, std::unique_ptr<EventPublisher> events,
               std::unique_ptr<ModelRunner> draft_runner)
    : config_(prepare(config, *runner, draft_runner.get())),
      runner_(std::move(runner)),
      processes_(runner_->traits().processes),
      draft_runner_(std::move(draft_runner)),
      tokens_(std::move(tokens)),
      limits_{runner_->traits().vocab_size, config_.session_len,
              runner_->traits().images,     config_.max_step_tokens - config_.max_batch_size,
              compiler != nullptr,          runner_->traits().is_pooling_model,
              config_.eos_token_ids},
      adapters_(
          *runner_, config_.adapter_bytes, [this](Submission&& ready) { inbox_.deliver(std::move(ready)); },
          [this] { inbox_.wake(); }, !config_.disk.directory.empty()),
      inbox_(config_.max_waiting),
      events_(std::move(events)),
      core_(config_, *runner_, tokens_, events_.get(), draft_runner_.get(), [this] { inbox_.wake(); }),
      stats_(core_.stats()) {
  if (compiler) {
    grammar_queue_ = std::make_unique<GrammarQueue>(std::move(compiler), [this](Submission&& compiled) {
      if (compiled.request.adapter) {
        adapters_.fetch(std::move(compiled));
      } else {
        inbox_.deliver(std::move(compiled));
      }
    });
  }
  if (processes_) processes_->on_loss([this] { inbox_.wake(); });
  if (events_) events_->notify([this] { inbox_.wake(); });
  if (limits_.is_pooling_model) ++encoder_count;
  thread_ = std::thread([this] { run(); });
}

Error Engine::stopped() const {
  return {ErrorCode::kUnavailable, processes_ ? "the engine is being started again; try again later"
                                              : "the engine has stopped after a device fault"};
}

void Engine::cancel(RequestId id) {
  inbox_.cancel(id);
  if (grammar_queue_) grammar_queue_->cancel(id);
}

bool Engine::is_hung() const {
  const Clock::time_point begin = step_begin_;
  return begin != Clock::time_point::max() && Clock::now() - begin > config_.step_timeout;
}

Engine::~Engine() {
  inbox_.close();
  thread_.join();
  adapters_.stop();
  if (processes_) processes_->on_loss({});
  if (limits_.is_pooling_model) --encoder_count;
}

void Engine::submit(Request request) {
  check_request(request, limits_, tokens_);
  if (!is_healthy_) throw stopped();
  if (!request.embeddings.empty()) reserve_embeddings(request);
  if (!request.params.lora_name.empty()) request.adapter = adapters_.find(request.params.lora_name);
  if (!request.params.response_format.empty()) {
    inbox_.expect(request);
    grammar_queue_->add(std::move(request));
  } else if (request.adapter && !adapters_.pin(request)) {
    inbox_.expect(request);
    adapters_.fetch({std::move(request), nullptr, std::nullopt});
  } else {
    inbox_.submit(std::move(request));
  }
}

void Engine::reserve_embeddings(Request& request) const {
  struct Reservation {
    std::shared_ptr<const EmbeddingRows> rows;
    std::shared_ptr<const void> share;
  };
  size_t bytes = 0;
  for (const EmbeddingRange& range : request.embeddings) bytes += range.rows->data.size();
  size_t used = *embedding_bytes_;
  do {
    if (bytes > config_.embedding_bytes - used) {
      throw Error(ErrorCode::kUnavailable, "overloaded: the embeddings of open requests and of sessions may take " +
                                               std::to_string(config_.embedding_bytes >> 20) + " MiB, and " +
                                               std::to_string(used >> 20) + " MiB are in use");
    }
  } while (!embedding_bytes_->compare_exchange_weak(used, used + bytes));
  const std::shared_ptr<const void> share(embedding_bytes_.get(),
                                          [used = embedding_bytes_, bytes](const void*) { *used -= bytes; });
  for (EmbeddingRange& range : request.embeddings) {
    const auto reservation = std::make_shared<const Reservation>(Reservation{std::move(range.rows), share});
    range.rows = {reservation, reservation->rows.get()};
  }
}

void Engine::control_cache(CacheControl control) {
  if (!is_healthy_) throw stopped();
  if (!control.lora_name.empty()) control.adapter_id = adapters_.find(control.lora_name)->id;
  inbox_.control(std::move(control));
}

EngineMemory Engine::memory() const {
  const size_t pages = static_cast<size_t>(config_.page_count) + static_cast<size_t>(config_.host_page_count);
  const size_t page_bytes = std::max(runner_->kept_page_bytes(), config_.plan.page_bytes);
  return {runner_->weight_bytes() + (draft_runner_ ? draft_runner_->weight_bytes() : 0), pages * page_bytes};
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(mu_);
  return stats_;
}

// ---- the step thread ----

void Engine::run() {
  for (bool is_closed = false; !is_closed;) {
    Inbox::Messages messages = inbox_.take(!core_.is_idle(), std::min(core_.next_deadline(), next_restart_));
    is_closed = messages.is_closed;
    step_begin_ = Clock::now();
    if (is_healthy_) guard([this] { adapters_.finish_loads(); });
    add(std::move(messages));
    if (is_closed) {
      core_.end_all(nullptr);
      core_.finish_files();
    } else {
      guard([this] { step(); });
    }
    if (config_.checks_invariants) check_when_idle();
    publish();
    step_begin_ = Clock::time_point::max();
    if (!is_closed && Clock::now() >= next_restart_) restart_runner();
  }
}

void Engine::add(Inbox::Messages&& messages) {
  for (Submission& submission : messages.submitted) core_.add(std::move(submission));
  for (const RequestId id : messages.cancelled) core_.cancel(id);
  for (const Inbox::Abandoned& request : messages.abandoned) core_.respond_to_abandoned(request);
  for (const CacheControl& control : messages.controls) core_.control(control);
  core_.end_overdue(Clock::now());
  if (!is_healthy_) fail(stopped());
}

void Engine::guard(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    fail(Error(ErrorCode::kUnavailable, std::string("the engine stopped: ") + error.what()));
  }
}

void Engine::step() {
  if (is_healthy_ && processes_ && processes_->is_lost()) throw Error(ErrorCode::kUnavailable, "a worker has ended");
  if (!has_lower_priority_ && !limits_.is_pooling_model && encoder_count > 0) {
    has_lower_priority_ = true;  // as long as the engine lives: to raise it again takes privileges
    runner_->lower_priority();
    if (draft_runner_) draft_runner_->lower_priority();
  }
  core_.step();
}

void Engine::fail(const Error& fault) {
  if (is_healthy_ && processes_) next_restart_ = Clock::now() + restart_delay_;
  is_healthy_ = false;
  core_.end_all(&fault);
}

// Open requests have been answered; those that come meanwhile are refused.
void Engine::restart_runner() {
  try {
    processes_->restart();
    core_.clear_cache();
    next_restart_ = Clock::time_point::max();
    restart_delay_ = {};
    is_healthy_ = true;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "the engine could not be started again: %s\n", error.what());
    restart_delay_ = std::clamp<std::chrono::milliseconds>(2 * restart_delay_, kFirstDelay, kMaxDelay);
    next_restart_ = Clock::now() + restart_delay_;
  }
}

// A broken invariant is a bug, and whatever comes after it may be wrong: nothing continues.
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
  core_.announce();
  EngineStats stats = core_.stats();
  if (events_) static_cast<EventCounts&>(stats) = events_->counts();
  if (grammar_queue_) stats.grammar = grammar_queue_->counts();
  inbox_.set_waiting(stats.waiting);
  {
    const std::lock_guard lock(mu_);
    stats_ = stats;
  }
  output_queue_.push(core_.take_outputs());
}

}  // namespace turbomind
