// The serving engine: requests in, streams of tokens out.
//
// One thread runs steps over the persistent batch; submit and cancel put messages into its inbox from any thread;
// outputs leave on the OutputQueue's thread; grammars are compiled on the GrammarQueue's. A bad request is refused by
// submit, an error later belongs to its request alone. Only a throw from the model runner, a device fault, stops the
// engine: every open request gets a final error and is_healthy() turns false.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "engine/block_cache.h"
#include "engine/grammar_queue.h"
#include "engine/output_queue.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/session_table.h"
#include "engine/stats.h"
#include "engine/token_table.h"
#include "model/model_runner.h"

namespace turbomind {

struct EngineConfig {
  int session_len = 2048;  // most tokens of prompt and answer together
  int max_batch_size = 64;
  int max_step_tokens = 512;  // rows of one step
  int block_len = 64;
  int block_count = 1;
  bool enable_prefix_caching = false;
  int max_waiting = 4096;  // requests beyond are refused as "overloaded"
  std::chrono::seconds session_idle_limit{3600};
  size_t max_sessions = 4096;
  std::vector<int32_t> eos_token_ids;
};

class Engine {
 public:
  // `compiler` may be null: requests with a response format are refused then.
  Engine(const EngineConfig& config, std::unique_ptr<ModelRunner> runner, TokenTable tokens,
         std::unique_ptr<GrammarCompiler> compiler = nullptr);
  // Cancels what is open, delivers the final outputs, stops the threads.
  ~Engine();

  // Takes a request; its id must be unique among open ones. Throws Error: kInvalidArgument for a bad request,
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

 private:
  struct Inbox {
    std::vector<Submission> submitted;
    std::vector<RequestId> cancelled;
    bool is_stopping = false;
  };

  // Any thread.
  void check(Request& request) const;
  void post(Submission&& submission);

  // Step thread.
  void run();
  bool take_inbox();
  void accept(const Submission& submission);
  void refuse(const Request& request, const Error& error);
  std::shared_ptr<Job> make_job(const Submission& submission);
  std::vector<int32_t> begin_session(Job& job);
  bool control_session(const Request& request);
  void forget_session(const SessionTable::Session& session);
  void end_overdue();
  void step();
  void begin(Step& step);
  void take(Step& step);
  bool may_go_ahead(const Step& step) const;
  const TokenChoice& prepare_choice(Sequence& sequence);
  void take_rows(Sequence& sequence, const StepSpan& span, int rows, float* logits, const float* hidden);
  void look_at_prompt(Sequence& sequence, const StepSpan& span, const float* logits, const float* hidden);
  void advance(Sequence& sequence, float* logits, const float* hidden);
  void advance(Sequence& sequence, const ChosenToken& chosen);
  bool may_go_on(Sequence& sequence, int32_t token);
  void go_on(Sequence& sequence, int32_t token);
  std::vector<int32_t> forbidden_tokens(Sequence& sequence) const;
  bool take_token(Sequence& sequence, int32_t token);
  void take_forced_tokens(Sequence& sequence);
  const std::vector<int32_t>& allowed_tokens(Sequence& sequence) const;
  void start_siblings(const Sequence& sequence);

  void emit(Sequence& sequence, FinishReason finish, int32_t stop_token = -1);
  void finish(Sequence& sequence, FinishReason reason, int32_t stop_token = -1);
  void fail(RequestId id, const Error& error);
  void end_where(const std::function<bool(const Sequence&)>& is_wanted, FinishReason reason, const Error* error);
  void answer_at_once(const Request& request, FinishReason reason, const Error* error);
  void close_job(Job& job, const std::vector<int32_t>& tokens, int32_t stop_token);
  void publish_stats();

  EngineConfig config_;
  std::unique_ptr<ModelRunner> runner_;
  TokenTable tokens_;

  // Owned by the step thread.
  BlockCache blocks_;
  Scheduler scheduler_;
  SessionTable sessions_;
  std::array<Step, 2> steps_;  // the one under way, and room for the next
  bool is_under_way_ = false;  // steps_[0] was begun and not taken
  std::vector<std::pair<OutputCallback, Output>> outputs_;
  EngineStats counts_;
  uint64_t next_arrival_ = 1;
  uint64_t next_scope_ = 1;
  std::multiset<Clock::time_point> deadlines_;  // of open requests that have one

  std::atomic<bool> is_healthy_{true};
  mutable std::mutex mu_;
  std::condition_variable wake_;
  Inbox inbox_;                    // guarded by mu_
  EngineStats stats_;              // guarded by mu_
  std::set<RequestId> compiling_;  // guarded by mu_; requests in the grammar queue
  std::set<RequestId> abandoned_;  // guarded by mu_; of those, cancelled ones

  OutputQueue output_queue_;
  std::unique_ptr<GrammarQueue> grammar_queue_;  // null: no compiler
  std::thread thread_;
};

}  // namespace turbomind
