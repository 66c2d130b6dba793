// The engine without its threads: requests go in, steps are run, outputs come out.
//
// What is wrong with one request is answered to its caller and is nobody else's. Only step() throws: a device fault.
//
// Used by the step thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/control/cache_control.h"
#include "engine/control/cache_pins.h"
#include "engine/engine_config.h"
#include "engine/events/cache_announcer.h"
#include "engine/generation/generation_rules.h"
#include "engine/generation/sampler.h"
#include "engine/generation/token_table.h"
#include "engine/inbox.h"
#include "engine/output_queue.h"
#include "engine/schedule/block_cache.h"
#include "engine/schedule/cache_scopes.h"
#include "engine/schedule/disk_tier.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/sequence.h"
#include "engine/schedule/session_table.h"
#include "engine/schedule/step_loop.h"
#include "engine/speculative/speculator.h"
#include "engine/stats.h"
#include "model/model_runner.h"

namespace turbomind {

class EngineCore {
 public:
  // `config` is what the runners' caches were allocated for. Runners and table must outlive the core, as must `events`,
  // which is notified of what the cache holds; null: nobody is. `draft_runner` drafts for `runner`; null: there is
  // none. `wake` is called on another thread when something was read from files, and step() is to be called.
  EngineCore(const EngineConfig& config, ModelRunner& runner, const TokenTable& tokens,
             CacheEventSink* events = nullptr, ModelRunner* draft_runner = nullptr, std::function<void()> wake = {});

  // Takes a checked request, or answers why it cannot be taken; its session is then as it was.
  void add(Submission&& submission);
  // Ends all responses of a request; their blocks are free at once. Unknown ids are ignored.
  void cancel(RequestId id);
  // Answers a request that never came so far as to be added.
  void respond_to_abandoned(const Inbox::Abandoned& request);
  // Does what is asked of the cache, and reports to the caller.
  void control(const CacheControl& control);
  // Ends what is overdue; forgets sessions that were idle too long.
  void end_overdue(Clock::time_point now);
  // Ends everything, as cancelled or, with an error, as failed; steps in flight are forgotten.
  void end_all(const Error* error);
  // Has what the cache holds written to files, where there are any; nothing is open.
  void finish_files() {
    if (disk_) disk_->finish();
  }
  // What the cache held is lost; nothing is open.
  void forget_cache() {
    pins_.clear();
    blocks_.forget_all();
  }

  bool has_work() const;
  // Whether step() has nothing to do until a message comes, a grammar's state becomes known, something was read from
  // files or it is next_deadline().
  bool is_idle() const { return (is_stalled_ || !has_work()) && !(disk_ && disk_->has_work()); }
  Clock::time_point next_deadline() const { return next_deadline_; }
  // Runs a step, if there is work. Throws what the model runner throws.
  void step();

  // Reports what happened in the cache since the last call.
  void announce() {
    if (announcer_) announcer_->end_step(blocks_);
  }
  std::vector<Delivery> take_outputs() { return std::exchange(outputs_, {}); }
  EngineStats stats() const;
  const BlockCache& cache() const { return blocks_; }
  // Throws Error(kInternal) when what is kept does not add up, or, without work, when anything is still in use.
  void check_invariants() const;

 private:
  CacheReport change_cache(const CacheControl& control);
  bool control_session(const Request& request, const std::shared_ptr<const OutputCallback>& on_output);
  void begin(Submission&& submission, const std::shared_ptr<const OutputCallback>& on_output);
  int cross_group() const { return blocks_.plan().group_of(MemoryKind::kCross); }
  bool needs_anchors() const;
  int room_alongside(const std::vector<ImageGroup>& looked_at) const;
  void finish_without_output(SequenceGroup& group, std::vector<int32_t>&& tokens);

  void take(const std::shared_ptr<Sequence>& sequence, const SpanOutput& output);
  void resume_waiting();
  void go_on(const std::shared_ptr<Sequence>& sequence, const std::function<FinishReason()>& advance);
  FinishReason advance(Sequence& sequence, const SpanOutput& output);
  FinishReason advance_over_drafts(Sequence& sequence, const SpanOutput& output);
  void note_tokens(Sequence& sequence, int generated_before);
  void start_siblings(const Sequence& first);

  void end_where(const std::function<bool(const Sequence&)>& is_wanted, FinishReason reason, const Error* error);
  void emit(Sequence& sequence, FinishReason finish, const Error* error);
  void respond_at_once(RequestId id, std::shared_ptr<const OutputCallback> on_output, FinishReason finish,
                       const Error* error, int input_len = 0);

  const EngineConfig config_;
  ModelRunner& runner_;
  const OutputSpace space_;
  EngineStats counts_;  // counters alone
  std::optional<CacheAnnouncer> announcer_;
  BlockCache blocks_;
  CachePins pins_;
  std::unique_ptr<DiskTier> disk_;  // null: nothing outlives memory
  LikelyTokens likely_tokens_;
  std::unique_ptr<Drafter> drafter_;  // null: none computes
  std::optional<Speculator> speculator_;
  Scheduler scheduler_;
  SessionTable sessions_;
  StepLoop steps_;
  Sampler sampler_;
  std::vector<Delivery> outputs_;
  std::vector<std::shared_ptr<Sequence>> waiting_;  // for their grammars; may have ended
  bool is_stalled_ = false;                         // all there are wait for their grammars, or for files
  uint64_t next_arrival_ = 1;
  CacheScopes scopes_;
  CacheScopes draft_scopes_;                                    // the same, a caller each
  Clock::time_point next_deadline_ = Clock::time_point::max();  // none of an open request is earlier
};

}  // namespace turbomind
