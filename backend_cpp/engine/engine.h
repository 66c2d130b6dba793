// The serving engine: requests in, streams of tokens out.
//
// One thread runs steps over the persistent batch; submit and cancel put messages into its inbox from any thread; outputs
// leave on the OutputQueue's thread. A bad request is refused by submit, an error later belongs to its request alone. Only
// a throw from the model runner, a device fault, stops the engine: every open request gets a final error and is_healthy()
// turns false.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/output_queue.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/token_table.h"
#include "model/model_runner.h"

namespace turbomind {

struct EngineConfig {
  int session_len = 2048;     // most tokens of prompt and answer together
  int max_batch_size = 64;
  int max_step_tokens = 512;  // rows of one step
  int block_len = 64;
  int block_count = 1;
  int max_waiting = 4096;     // requests beyond are refused as "overloaded"
  std::vector<int32_t> eos_token_ids;
};

// A consistent picture of the engine at the end of a step. Counters count since the start.
struct EngineStats {
  int running = 0;
  int waiting = 0;
  int blocks_total = 0;
  int blocks_used = 0;
  int64_t completed = 0;
  int64_t cancelled = 0;
  int64_t failed = 0;  // after having been accepted
  int64_t tokens_in = 0;
  int64_t tokens_out = 0;
  int64_t preemptions = 0;
  int64_t steps = 0;
  double step_seconds = 0;     // whole steps
  double forward_seconds = 0;  // of those, inside the model
};

class Engine {
 public:
  Engine(const EngineConfig& config, std::unique_ptr<ModelRunner> runner, TokenTable tokens);
  // Cancels what is open, delivers the final outputs, stops the threads.
  ~Engine();

  // Takes a request; its id must be unique among open ones. Throws Error: kInvalidArgument for a bad request,
  // kUnavailable when overloaded, shut down or failed. Any thread.
  void submit(Request request);
  // Ends a request with FinishReason::kCancelled; its blocks are free before the next step. Unknown ids are ignored, since
  // the request may just have finished. Any thread.
  void cancel(RequestId id);

  bool is_healthy() const { return is_healthy_.load(); }
  EngineStats stats() const;
  const EngineConfig& config() const { return config_; }
  int vocab_size() const { return runner_->vocab_size(); }

 private:
  struct Inbox {
    std::vector<Request> submitted;
    std::vector<RequestId> cancelled;
    bool is_stopping = false;
  };

  void run();
  bool take_inbox();
  void step();
  void advance(Sequence& sequence, float* logits);
  void emit(Sequence& sequence, FinishReason finish, std::string error = {});
  void finish(RequestId id, FinishReason reason, std::string error = {});
  void finish_all(FinishReason reason, const std::string& error);
  void publish_stats();

  EngineConfig config_;
  std::unique_ptr<ModelRunner> runner_;
  TokenTable tokens_;

  // Owned by the step thread.
  BlockPool blocks_;
  Scheduler scheduler_;
  StepInput input_;
  std::vector<std::pair<OutputCallback, Output>> outputs_;
  EngineStats counts_;

  std::atomic<bool> is_healthy_{true};
  mutable std::mutex mu_;
  std::condition_variable wake_;
  Inbox inbox_;          // guarded by mu_
  EngineStats stats_;    // guarded by mu_

  OutputQueue output_queue_;
  std::thread thread_;
};

}  // namespace turbomind
