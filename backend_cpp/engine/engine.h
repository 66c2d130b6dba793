// The serving engine: requests in, streams of tokens out.
//
//   submit, cancel --> Inbox --> step thread: EngineCore --> OutputQueue --> callbacks
//   (any thread)         ^                                   (its thread)
//                        '-- GrammarQueue (its thread): requests with a response format
//
// A bad request is refused by submit, an error later belongs to its request alone. Only a throw from the model runner,
// a device fault, stops the engine: every open request gets a final error and is_healthy() turns false, for good or,
// where the runner can be started again, until that has been done.
#pragma once

#include <atomic>
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
#include "engine/memory_budget.h"
#include "engine/output_queue.h"
#include "engine/request.h"
#include "engine/stats.h"
#include "model/model_runner.h"

namespace turbomind {

class Engine {
 public:
  // `compiler` may be null: requests with a response format are refused then; and `events`: nobody is notified of the
  // cache; and `draft_runner`: no model drafts for `runner`.
  Engine(const EngineConfig& config, std::unique_ptr<ModelRunner> runner, TokenTable tokens,
         std::unique_ptr<GrammarCompiler> compiler = nullptr, std::unique_ptr<EventPublisher> events = nullptr,
         std::unique_ptr<ModelRunner> draft_runner = nullptr);
  // Cancels what is open, requests whose grammars are being compiled included, delivers the final outputs, stops the
  // threads.
  ~Engine();

  // Takes a request; its id must never have been used. Throws Error: kInvalidArgument for a bad request,
  // kUnavailable when overloaded, shut down or failed. Any thread.
  void submit(Request request);
  // Ends a request with FinishReason::kCancelled; its blocks are free before the next step. Unknown ids are ignored,
  // since the request may just have finished. Any thread.
  void cancel(RequestId id);

  // Low-rank adapters, which requests name (GenerationFields::lora_name). Any thread.
  //
  // Opens one; its weights are read when a request names it. Throws Error for a name that is taken and for an adapter
  // that does not fit.
  void load_adapter(const std::string& name, const std::string& directory, const std::string& note = {}) {
    adapters_.add(name, directory, note);
  }
  // Refuses later requests; open ones end as they would have. Throws Error for an unknown name.
  void unload_adapter(const std::string& name) { adapters_.remove(name); }
  std::vector<AdapterInfo> adapters() const { return adapters_.list(); }

  // Has the step thread do something about the cache. Throws Error for an unknown adapter, and kUnavailable when shut
  // down or failed. Any thread.
  void control_cache(CacheControl control);

  // Whether requests are taken.
  bool is_healthy() const { return is_healthy_.load(); }
  // Whether a step takes longer than it may.
  bool is_hung() const;
  // Whether none will be again.
  bool has_failed() const { return !is_healthy() && processes_ == nullptr; }
  EngineStats stats() const;
  const EngineConfig& config() const { return config_; }
  int vocab_size() const { return runner_->traits().vocab_size; }
  int hidden_size() const { return runner_->traits().hidden_size; }
  // Numbers of a row in place of a token embedding; 0: it takes none.
  int embedding_width() const { return runner_->traits().images.width; }

 private:
  void run();
  Error stopped() const;
  void add(Inbox::Messages&& messages);
  void settle_adapters();
  void step();
  void lower_priority();
  void fail(const Error& fault);
  void restart_runner();
  void check_when_idle() const;
  // Counts a request's embeddings for as long as anything of it is kept. Throws Error(kUnavailable).
  void hold_embeddings(Request& request) const;
  void publish();

  const EngineConfig config_;
  const std::unique_ptr<ModelRunner> runner_;
  RunnerProcesses* const processes_;  // null: the model runs in this process
  const std::unique_ptr<ModelRunner> draft_runner_;
  const TokenTable tokens_;
  const RequestLimits limits_;
  const MemoryBudget embedding_memory_;
  AdapterPool adapters_;  // goes after all that holds requests
  Inbox inbox_;
  // Goes after the core, whose responses hold grammars of its compiler's, and before the inbox that it brings requests
  // to.
  std::unique_ptr<GrammarQueue> grammar_queue_;  // null: no compiler
  OutputQueue output_queue_;
  const std::unique_ptr<EventPublisher> events_;  // null: none
  EngineCore core_;                               // the step thread's

  std::atomic<bool> is_healthy_{true};
  std::atomic<Clock::time_point> step_begin_{Clock::time_point::max()};  // max: no step runs
  // The step thread's: when a runner that was lost is started again, and how long after a failure.
  Clock::time_point next_restart_ = Clock::time_point::max();
  std::chrono::milliseconds restart_delay_{0};
  bool has_lower_priority_ = false;  // the step thread's
  mutable std::mutex mu_;
  EngineStats stats_;  // guarded by mu_
  std::thread thread_;
};

}  // namespace turbomind
