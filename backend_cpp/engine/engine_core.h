// Single-threaded core of the engine: takes requests, runs steps, returns outputs.
//
// Errors of a request are returned to its caller and affect no other request. Only step() throws, on device faults.
//
// Used by the step thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/cache/block_cache.h"
#include "engine/cache/cache_announcer.h"
#include "engine/cache/disk_tier.h"
#include "engine/cache/prefix_key.h"
#include "engine/cache_control.h"
#include "engine/engine_config.h"
#include "engine/generation/generation.h"
#include "engine/generation/sampler.h"
#include "engine/generation/token_table.h"
#include "engine/inbox.h"
#include "engine/output_queue.h"
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
  // `config` must be the one that the runners' caches were allocated for. Runners, table and `events` must outlive the
  // core. `events` receives KV cache events; null: none. `draft_runner` is the draft model or head; null: none. `wake`
  // is called on another thread when blocks were read from files, so that step() is called.
  EngineCore(const EngineConfig& config, ModelRunner& runner, const TokenTable& tokens,
             CacheEventSink* events = nullptr, ModelRunner* draft_runner = nullptr, std::function<void()> wake = {});

  // Adds a validated request, or responds with an error and leaves its session unchanged.
  void add(Submission&& submission);
  // Ends all responses of a request and frees their blocks immediately. Unknown ids are ignored.
  void cancel(RequestId id) { end_request(id, FinishReason::kCancelled, nullptr); }
  // Responds to a request that was abandoned before it was added.
  void respond_to_abandoned(const Inbox::Abandoned& request);
  // Runs a cache control operation and reports to its caller.
  void control(const CacheControl& control);
  // Ends requests past their deadline, and deletes sessions that were idle too long.
  void end_overdue(Clock::time_point now);
  // Ends all requests, as cancelled or, with an error, as failed, and drops steps in flight.
  void end_all(const Error* error);
  // Writes the cache to the disk tier, if any. No request may be open.
  void finish_files() {
    if (disk_) disk_->finish();
  }
  // Clears the cache, whose content is lost. No request may be open.
  void clear_cache() {
    pins_.clear();
    blocks_.contents().clear();
  }

  bool has_work() const { return steps_.is_in_flight() || scheduler_.running_count() + scheduler_.waiting_count() > 0; }
  // Whether step() has nothing to do until a message arrives, blocks were read from files, or next_deadline().
  bool is_idle() const { return (is_stalled_ || !has_work()) && !(disk_ && disk_->has_work()); }
  Clock::time_point next_deadline() const { return next_deadline_; }
  // Runs a step, if there is work. Throws exceptions of the model runner.
  void step();

  // Publishes the cache events since the last call.
  void announce() {
    if (!announcer_) return;
    if (disk_) announcer_->record_files(disk_->take_changes());
    announcer_->end_step(blocks_);
  }
  std::vector<Delivery> take_outputs() { return std::exchange(outputs_, {}); }
  EngineStats stats() const;
  const BlockCache& cache() const { return blocks_; }
  // Throws Error(kInternal) if the bookkeeping is inconsistent, or if anything is in use without work.
  void check_invariants() const;

 private:
  // Returns the tokens of the prompt that are kept now.
  int change_pins(const CacheControl& control);
  CacheReport change_cache(const CacheControl& control);
  void release_memory();
  bool control_session(const Request& request, const std::shared_ptr<const OutputCallback>& on_output);
  // A request that can be served.
  struct Plan {
    std::shared_ptr<SequenceGroup> group;     // but for its realms
    std::shared_ptr<Sequence> first;          // null: the model does not run
    std::vector<int32_t> tokens;              // history and input, unless `first` has them
    std::optional<uint64_t> cache_namespace;  // of its session's blocks; none: that of its salt
  };
  // All that can fail comes first, so that a refused request has changed nothing. Throws Error.
  Plan validate(Submission&& submission, std::shared_ptr<const OutputCallback> on_output) const;
  void limit_new_tokens(GenerationParams& params, int prompt_len, const std::vector<ImageGroup>& cross_images) const;
  void describe(const Request& request, const std::vector<int32_t>& tokens, SequenceGroup& group) const;
  // Adds it before any other request is validated. Cannot fail.
  void admit(Plan&& plan);
  int cross_group() const { return blocks_.plan().group_of(MemoryKind::kCross); }
  void finish_without_output(SequenceGroup& group, std::vector<int32_t>&& tokens);

  void collect(Sequence& sequence, const SpanOutput& output);
  FinishReason advance(Sequence& sequence, const SpanOutput& output);
  FinishReason advance_over_drafts(Sequence& sequence, const SpanOutput& output);
  void record_tokens(Sequence& sequence, int generated_before);
  void start_siblings(const Sequence& first);

  void end_request(RequestId id, FinishReason reason, const Error* error);
  void end_where(const std::function<bool(const Sequence&)>& matches, FinishReason reason, const Error* error);
  void emit(Sequence& sequence, FinishReason finish, const Error* error);
  Output& respond_at_once(RequestId id, std::shared_ptr<const OutputCallback> on_output, FinishReason finish,
                          const Error* error, int input_len = 0);

  const EngineConfig config_;
  ModelRunner& runner_;
  const OutputSpace space_;
  EngineStats counts_;  // counters only
  std::optional<CacheAnnouncer> announcer_;
  BlockCache blocks_;
  CachePins pins_;
  std::unique_ptr<DiskTier> disk_;    // null: no disk tier
  std::unique_ptr<Drafter> drafter_;  // null: no draft model
  std::optional<Speculator> speculator_;
  Scheduler scheduler_;
  SessionTable sessions_;
  StepLoop steps_;
  Sampler sampler_;
  std::vector<Delivery> outputs_;
  bool is_stalled_ = false;  // all sequences wait for files
  uint64_t next_arrival_ = 1;
  CacheScopes scopes_;
  CacheScopes draft_scopes_;                                    // the same, one per caller
  Clock::time_point next_deadline_ = Clock::time_point::max();  // lower bound of the deadlines of open requests
};

}  // namespace turbomind
