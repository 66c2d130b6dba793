// The serving engine: requests in, streams of tokens out.
//
//   submit, cancel --> Inbox --> step thread: EngineCore --> OutputQueue --> callbacks
//   (any thread)         ^                                   (its thread)
//                        '-- GrammarQueue (its thread): requests with a response format
//
// A bad request is refused by submit, an error later belongs to its request alone. Only a throw from the model runner,
// a device fault, stops the engine: every open request gets a final error and is_healthy() turns false.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/answer/token_table.h"
#include "engine/check_request.h"
#include "engine/engine_config.h"
#include "engine/engine_core.h"
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
  // `compiler` may be null: requests with a response format are refused then.
  Engine(const EngineConfig& config, std::unique_ptr<ModelRunner> runner, TokenTable tokens,
         std::unique_ptr<GrammarCompiler> compiler = nullptr);
  // Cancels what is open, requests whose grammars are being compiled included, delivers the final outputs, stops the
  // threads.
  ~Engine();

  // Takes a request; its id must never have been used. Throws Error: kInvalidArgument for a bad request,
  // kUnavailable when overloaded, shut down or failed. Any thread.
  void submit(Request request);
  // Ends a request with FinishReason::kCancelled; its blocks are free before the next step. Unknown ids are ignored,
  // since the request may just have finished. Any thread.
  void cancel(RequestId id);

  bool is_healthy() const { return is_healthy_.load(); }
  EngineStats stats() const;
  const EngineConfig& config() const { return config_; }
  int vocab_size() const { return runner_->vocab_size(); }
  int hidden_size() const { return runner_->hidden_size(); }
  // Numbers of a row in place of a token embedding; 0: it takes none.
  int embedding_width() const { return runner_->pictures().width; }

 private:
  void run();
  void add(Inbox::Messages&& messages);
  void step();
  void fail(const Error& fault);
  void check_when_idle() const;
  // Counts a request's embeddings for as long as anything of it is kept. Throws Error(kUnavailable).
  void hold_embeddings(Request& request) const;
  void publish();

  const EngineConfig config_;
  const std::unique_ptr<ModelRunner> runner_;
  const TokenTable tokens_;
  const RequestLimits limits_;
  const MemoryBudget embedding_memory_;
  Inbox inbox_;
  // Goes after the core, whose answers hold grammars of its compiler's, and before the inbox that it brings requests
  // to.
  std::unique_ptr<GrammarQueue> grammar_queue_;  // null: no compiler
  OutputQueue output_queue_;
  EngineCore core_;  // the step thread's

  std::atomic<bool> is_healthy_{true};
  mutable std::mutex mu_;
  EngineStats stats_;  // guarded by mu_
  std::thread thread_;
};

}  // namespace turbomind
