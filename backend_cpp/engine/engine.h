// The serving engine: takes requests, returns streams of tokens.
//
//   submit, cancel --> Inbox --> step thread: EngineCore --> OutputQueue --> callbacks
//   (any thread)         ^                                   (its thread)
//                        '-- GrammarQueue (its thread): requests with a response format
//
// submit() refuses invalid requests; a later error ends only its request. Only an exception of the model runner (a
// device fault) stops the engine: every open request ends with an error, and is_healthy() is false until the runner
// has been restarted, or forever if it cannot be.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/adapters/adapter_pool.h"
#include "engine/check_request.h"
#include "engine/engine_config.h"
#include "engine/engine_core.h"
#include "engine/events/event_publisher.h"
#include "engine/generation/token_table.h"
#include "engine/grammar/grammar_queue.h"
#include "engine/inbox.h"
#include "engine/output_queue.h"
#include "engine/request.h"
#include "engine/stats.h"
#include "model/model_runner.h"

namespace turbomind {

// Memory of an engine, in bytes.
struct EngineMemory {
  size_t weights = 0;
  size_t cache = 0;  // pages of the device and of the host, whether or not they were written

  size_t total() const { return weights + cache; }
};

class Engine {
 public:
  // Without a `compiler`, requests with a response format are refused. `events` receives KV cache events; null: none.
  // `draft_runner` is the draft model or head; null: none.
  Engine(const EngineConfig& config, std::unique_ptr<ModelRunner> runner, TokenTable tokens,
         std::unique_ptr<GrammarCompiler> compiler = nullptr, std::unique_ptr<EventPublisher> events = nullptr,
         std::unique_ptr<ModelRunner> draft_runner = nullptr);
  // Cancels open requests, including those whose grammars are being compiled, delivers the final outputs and stops the
  // threads.
  ~Engine();

  // Submits a request, whose id must be unique. Throws Error: kInvalidArgument for a bad request,
  // kUnavailable when overloaded, shut down or failed. Any thread.
  void submit(Request request);
  // Ends a request with FinishReason::kCancelled; its blocks are free before the next step. Unknown ids are ignored,
  // since the request may just have finished. Any thread.
  void cancel(RequestId id);

  // LoRA adapters, which requests select by GenerationFields::lora_name. Any thread.
  //
  // Registers an adapter; its weights are loaded when a request names it. Throws Error if the name is taken or the
  // adapter does not match the model.
  void load_adapter(const std::string& name, const std::string& directory, const std::string& note = {}) {
    adapters_.add(name, directory, note);
  }
  // Refuses later requests for it; running ones finish. Throws Error for an unknown name.
  void unload_adapter(const std::string& name) { adapters_.remove(name); }
  std::vector<AdapterInfo> adapters() const { return adapters_.list(); }

  // Sends a cache control operation to the step thread. Throws Error for an unknown adapter, and kUnavailable when shut
  // down or failed. Any thread.
  void control_cache(CacheControl control);

  // Whether the engine accepts requests.
  bool is_healthy() const { return is_healthy_.load(); }
  // Whether the running step exceeds its time limit.
  bool is_hung() const;
  // Whether it has stopped accepting requests for good.
  bool has_failed() const { return !is_healthy() && processes_ == nullptr; }
  EngineStats stats() const;
  const EngineConfig& config() const { return config_; }
  EngineMemory memory() const;
  int vocab_size() const { return runner_->traits().vocab_size; }
  int hidden_size() const { return runner_->traits().hidden_size; }
  // Width of image embeddings; 0: the model takes none.
  int embedding_width() const { return runner_->traits().images.width; }

 private:
  void run();
  Error stopped() const;
  void add(Inbox::Messages&& messages);
  // Runs a function that a device fault may end.
  void guard(const std::function<void()>& work);
  void step();
  void fail(const Error& fault);
  void restart_runner();
  void check_when_idle() const;
  // Reserves memory for a request's embeddings while they are kept. Throws Error(kUnavailable).
  void reserve_embeddings(Request& request) const;
  void publish();

  const EngineConfig config_;
  const std::unique_ptr<ModelRunner> runner_;
  RunnerProcesses* const processes_;  // null: the model runs in this process
  const std::unique_ptr<ModelRunner> draft_runner_;
  const TokenTable tokens_;
  const RequestLimits limits_;
  // Of open requests and of sessions; their embeddings give theirs back, maybe after the engine has ended.
  const std::shared_ptr<std::atomic<size_t>> embedding_bytes_ = std::make_shared<std::atomic<size_t>>(0);
  AdapterPool adapters_;  // destroyed after everything that holds requests
  Inbox inbox_;
  // Destroyed after the core, whose responses hold its grammars, and before the inbox, which it delivers to.
  std::unique_ptr<GrammarQueue> grammar_queue_;  // null: no compiler
  OutputQueue output_queue_;
  const std::unique_ptr<EventPublisher> events_;  // null: none
  EngineCore core_;                               // the step thread's

  std::atomic<bool> is_healthy_{true};
  std::atomic<Clock::time_point> step_begin_{Clock::time_point::max()};  // max: no step runs
  // Of the step thread: when a lost runner is restarted, and the delay after a failure.
  Clock::time_point next_restart_ = Clock::time_point::max();
  std::chrono::milliseconds restart_delay_{0};
  bool has_lower_priority_ = false;  // the step thread's
  mutable std::mutex mu_;
  EngineStats stats_;  // guarded by mu_
  std::thread thread_;
};

// Cache plan of all runners of an engine. `draft_runner`: null where no model drafts. Throws Error that names the group
// that cannot be.
CachePlan plan_caches(const ModelRunner& runner, const ModelRunner* draft_runner, const StepLimits& limits);

}  // namespace turbomind
