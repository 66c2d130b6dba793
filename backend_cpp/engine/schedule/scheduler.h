// Scheduler of continuous batching with chunked prefill: plans the tokens of the next step.
//
// Order. Sequences are served by priority, then in order of arrival.
//
// Token budget. A step has at most `max_step_tokens`. Every decoding sequence gets its token first, so a long prompt
// never delays running responses; prompts share the rest in chunks. At least a quarter of the budget is left for
// prompts (max_batch_size is at most three quarters of max_step_tokens), so running responses never starve them.
//
// Memory. A waiting sequence is admitted when blocks for all its tokens and one more are available; cached blocks are
// reused. When a running sequence needs a block and none is free, the running sequence served last is preempted: it
// waits again with its tokens, and whatever the cache no longer holds is recomputed. The sequence served first is never
// preempted, so work always completes.
//
// Prefixes in flight. If a running sequence is about to compute a prefix that a waiting one shares, the waiting one
// waits until the prefix is cached, or until the running one ends, and holds no blocks meanwhile. That delays nobody,
// since the running sequence is served first anyway; others are admitted in between.
//
// Disk tier. If files hold more of a waiting sequence's prefix than memory, the sequence waits until they are read,
// with memory reserved; others are admitted in between.
//
// Images. If the tokens of an image attend to each other (bidirectional attention), a chunk does not end within the
// image; the images of a request fit into a step together with all decoding sequences. With cross-attention, the keys
// and values of an image are computed before the first token that attends to it: some image rows per step, of which
// kKvWritesPerToken count as one token of the budget.
//
// Drafts. A step with everything above takes draft tokens as further tokens of their sequences, as far as blocks are
// free; drafts take nothing from other sequences. A state cannot be truncated, so it is backed up before drafts run;
// after a rejected draft the backup is restored, and the accepted tokens run again in the next step.
//
// Encoders. A text runs whole, in one step, and holds no blocks. A step takes the text that arrived first and then the
// shortest ones, up to max_step_tokens: a short text does not wait for long ones, and no text starves.
//
// Cache groups. SequenceMemory tracks the memory of a sequence in each cache group and frees it after a step; in models
// with states, a chunk ends at the next position of a snapshot.
//
// Used by the step thread only.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/cache/block_cache.h"
#include "engine/schedule/sequence.h"
#include "engine/speculative/speculator.h"
#include "engine/stats.h"
#include "model/model_runner.h"

namespace turbomind {

// The tokens of a step, and their sequences: sequences[i] has input.spans[i].
struct Step {
  std::vector<PageMove> moves;  // executed first
  StepInput input;
  std::vector<std::shared_ptr<Sequence>> sequences;
  std::vector<std::shared_ptr<Sequence>> encoding;  // of input.kv_writes
  bool was_short_of_blocks = false;                 // a sequence was left out for lack of blocks
  double begin_seconds = 0;                         // time it took to launch the step

  bool is_empty() const { return sequences.empty() && encoding.empty(); }
};

// Image rows that count as one token of the budget: only the cross-attention layers compute keys and values for them.
inline constexpr int kKvWritesPerToken = 16;

struct SchedulerConfig {
  int max_batch_size = 1;
  int max_step_tokens = 1;
  bool keeps_images_whole = false;  // image tokens have bidirectional attention
  bool is_pooling_model = false;    // the model is an encoder
};

// In models whose rejected drafts make tokens run again, a step with more sequences than this has no drafts.
inline constexpr int kMaxRedone = 4;

// Maximum number of waiting sequences per step that are checked for prefixes in flight.
inline constexpr int kMaxPrefixWaits = 64;

class Scheduler {
 public:
  using MovePages = std::function<void(const std::vector<PageMove>&)>;

  // `speculator`, `disk`: null if off. `move_pages` moves pages immediately. All must outlive the scheduler.
  Scheduler(const SchedulerConfig& config, BlockCache& blocks, Speculator* speculator = nullptr,
            MovePages move_pages = nullptr, DiskTier* disk = nullptr)
      : config_(config), blocks_(blocks), speculator_(speculator), move_pages_(std::move(move_pages)), disk_(disk) {}

  void add(std::shared_ptr<Sequence> sequence);

  // Fills `step`; it stays empty if there is nothing to do. Without `may_preempt`: while the previous step is in flight
  // and its tokens are unknown (overlap scheduling).
  void plan(Step& step, bool may_preempt = true);
  // The step was launched and its input tokens are known: counts them as cached and publishes full blocks. Blocks that
  // are freed meanwhile are not overwritten before the launched steps have read them.
  void commit(const Step& step);
  // Accepts the first `count` draft tokens of a sequence in a committed step, and discards the others.
  void take_drafts(Sequence& sequence, int count);
  // Passes the hidden states of a step's tokens, token_hidden [tokens, width], to the drafter.
  void record_hidden(const Step& step, const float* token_hidden);
  // Whether the next step should wait for the tokens of `step`, since drafts depend on them.
  bool would_draft(const Step& step) const;

  // Removes every sequence for which `matches` holds, in any state, and frees its blocks.
  std::vector<std::shared_ptr<Sequence>> remove_if(const std::function<bool(const Sequence&)>& matches);

  int running_count() const { return static_cast<int>(running_.size()); }
  int waiting_count() const { return static_cast<int>(waiting_.size()); }
  const SchedulerCounts& counts() const { return counts_; }

  // Throws Error(kInternal) if blocks and sequences are inconsistent.
  void check_invariants() const;

 private:
  // Of the step being planned.
  struct Budget {
    int tokens;
    bool may_preempt;
    bool is_short = false;  // blocks were missing
  };

  void plan_tokens(Sequence& sequence, int tokens, Budget& budget);
  void plan_decoding(Budget& budget);
  void plan_prompts(Budget& budget);
  void plan_texts();
  void add_spans(Step& step);
  int chunk_of(const Sequence& sequence, int budget) const;
  int plan_images(Sequence& sequence, int tokens, int& kv_writes, bool may_preempt);
  bool may_draft(const Sequence& sequence, bool has_state) const;
  void add_drafts(int free_tokens);
  bool is_redoing(const Sequence& sequence) const;
  void take_sequence_drafts(Sequence& sequence);
  int missing_pages(const Sequence& sequence) const;
  bool reserve(Sequence& sequence, int tokens, bool may_preempt);
  bool make_room(const Sequence& sequence);
  void admit();
  bool waits_for_prefix(const Sequence& sequence);
  bool has_room(int missing, int reserved) const;
  bool waits_for_disk(Sequence& sequence, int& reserved);
  bool try_admit(Sequence& sequence, int& reserved);
  void release_memory(Sequence& sequence, Keep keep);

  SchedulerConfig config_;
  BlockCache& blocks_;
  Speculator* speculator_;
  MovePages move_pages_;
  DiskTier* disk_;
  std::vector<std::shared_ptr<Sequence>> waiting_;  // in order of service
  std::vector<std::shared_ptr<Sequence>> running_;  // in order of service
  SchedulerCounts counts_;
};

}  // namespace turbomind
