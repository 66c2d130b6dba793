// Decides which tokens run in the next step.
//
// Policy. A step holds at most `max_step_tokens` rows. Every decoding sequence gets its one row first, so a long prompt
// never delays running answers; what is left of the budget goes to prompts, first come first served, cut into chunks. At
// least a quarter of the budget is kept for prompts, so running answers never starve a prompt (max_batch_size is at most
// three quarters of max_step_tokens).
//
// Memory. A waiting sequence is admitted when blocks for its whole prompt and one more are free. A running sequence that
// needs a block when none is free takes those of the sequence admitted last, which returns to the head of the queue with
// its tokens and is recomputed later; the sequence admitted first is never preempted, so work always completes.
//
// Used by the step thread only.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "engine/block_pool.h"
#include "engine/sequence.h"
#include "model/model_runner.h"

namespace turbomind {

struct SchedulerConfig {
  int max_batch_size = 1;
  int max_step_tokens = 1;
  int block_len = 64;
};

class Scheduler {
 public:
  Scheduler(const SchedulerConfig& config, BlockPool& blocks) : config_(config), blocks_(blocks) {}

  void add(std::unique_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }

  // Fills `input` for the next step and returns the sequences its spans belong to, in the same order; empty: nothing to do.
  const std::vector<Sequence*>& plan(StepInput& input);
  // After the step ran: its tokens are in the cache.
  void commit();

  // Takes a sequence out, whatever its state, and frees its blocks. nullptr when it is not here.
  std::unique_ptr<Sequence> remove(RequestId id);
  // Takes all of them out.
  std::vector<std::unique_ptr<Sequence>> remove_all();

  int running_count() const { return static_cast<int>(running_.size()); }
  int waiting_count() const { return static_cast<int>(waiting_.size()); }
  int64_t preemption_count() const { return preemptions_; }

  // Throws Error(kInternal) when blocks and sequences do not add up; for tests.
  void check_invariants() const;

 private:
  int blocks_for(int tokens) const { return (tokens + config_.block_len - 1) / config_.block_len; }
  bool reserve(Sequence& sequence, int tokens);
  void preempt_last();
  void admit();

  SchedulerConfig config_;
  BlockPool& blocks_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;  // in order of admission
  std::vector<Sequence*> planned_;
  int64_t preemptions_ = 0;
};

}  // namespace turbomind
