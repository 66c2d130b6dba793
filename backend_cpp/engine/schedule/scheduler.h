// Decides which tokens run in the next step.
//
// Order. Sequences are served by priority, then by arrival.
//
// Tokens. A step holds at most `max_step_tokens`. Every decoding sequence gets its token first, so a long prompt never
// delays running responses; what is left of the budget goes to prompts, cut into chunks. At least a quarter of the
// budget is left for prompts (max_batch_size is at most three quarters of max_step_tokens), so running responses never
// starve one.
//
// Memory. A waiting sequence is admitted when blocks for all its tokens and one more are available; what the cache
// still holds of it is used, not computed. A running sequence that needs a block when none is available takes those of
// the running sequence served last, which waits again with its tokens and is recomputed, as far as its blocks were
// taken meanwhile. The sequence served first is never preempted, so work always completes.
//
// Prefixes in flight. What a running sequence that is served before a waiting one is about to compute of the prompt of
// both is not computed twice: the other waits until it is there, or until the first leaves, and holds nothing
// meanwhile. That delays nobody, since the tokens of a step go to the first one anyway; others are admitted in between.
//
// Files. Where files have more of a waiting sequence's prefix than memory, it waits for that to be read, with space set
// aside; others are admitted in between.
//
// Images. Where the tokens of an image see each other, a chunk does not end within one; a request's images are
// small enough to fit into a step alongside all decoding sequences. Where tokens look at images by cross-attention,
// these are written before the first token that looks runs: some rows a step, which count as kFillsOfARow a row.
//
// Drafts. Where drafts are made at how responses continue, a step that has everything above takes them as further
// tokens of their sequences, as far as blocks are free; they take nothing from anybody.
//
// A state that drafts have changed cannot be cut back: it is copied before, and where a draft was wrong, the copy takes
// its place, and the tokens before the wrong draft run again with the next step.
//
// Encoders. A text runs whole, in one step, and holds no blocks. A step has the text that came first and, of the
// others, the shortest, as far as max_step_tokens goes: a short text does not wait for long ones, and each has its
// turn.
//
// Memory of several kinds. What a sequence holds in each cache group, and what of it is given back after a step, is
// SequenceMemory's; where states have snapshots, a chunk does not go past the next place of one.
//
// Used by the step thread only.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/schedule/block_cache.h"
#include "engine/schedule/sequence.h"
#include "engine/speculative/speculator.h"
#include "model/model_runner.h"

namespace turbomind {

// What the model runs at once, and whose tokens they are: sequences[i] has input.spans[i].
struct Step {
  std::vector<PageMove> moves;  // to be done first
  StepInput input;
  std::vector<std::shared_ptr<Sequence>> sequences;
  std::vector<std::shared_ptr<Sequence>> looking;  // that have input.fills
  bool was_short_of_blocks = false;                // a sequence had to be left out
  double begin_seconds = 0;                        // that beginning it took

  bool is_empty() const { return sequences.empty() && looking.empty(); }
};

// Of an image's row, a few layers' keys and values alone are computed.
inline constexpr int kFillsOfARow = 16;

struct SchedulerConfig {
  int max_batch_size = 1;
  int max_step_tokens = 1;
  bool keeps_images_whole = false;  // the tokens of an image see each other
  bool reads_whole = false;         // the model is an encoder
};

// Where a wrong draft makes tokens run again, a step that runs more than these has no drafts.
inline constexpr int kMaxRedone = 4;

// At most this many waiting sequences are looked at in a step for what running ones compute of them.
inline constexpr int kMaxPrefixWaits = 64;

class Scheduler {
 public:
  using MovePages = std::function<void(const std::vector<PageMove>&)>;

  // `speculator`: null where nothing is drafted; must outlive the scheduler. `move_pages` moves pages at once.
  // `disk`: null where nothing outlives memory; must outlive the scheduler.
  Scheduler(const SchedulerConfig& config, BlockCache& blocks, Speculator* speculator = nullptr,
            MovePages move_pages = nullptr, DiskTier* disk = nullptr)
      : config_(config), blocks_(blocks), speculator_(speculator), move_pages_(std::move(move_pages)), disk_(disk) {}

  void add(std::shared_ptr<Sequence> sequence);

  // Fills `step`; an empty one: nothing to do.
  void plan(Step& step) { plan(step, true); }
  // The same while the step before is under way, whose choices nobody has seen: preempts nobody.
  void plan_ahead(Step& step) { plan(step, false); }
  // The step was begun, and all its tokens are known: they count as cached, and full blocks are published. A block that
  // is given up meanwhile is not written before the steps that were begun have read it.
  void commit(const Step& step);
  // Of the drafts of a sequence in a committed step the first `count` were right, and are tokens of it now. It has
  // none any more.
  void take_drafts(Sequence& sequence, int count);
  // The hidden states of every token of a step, where the runner hands them out: token_hidden [tokens, width].
  void note_hidden(const Step& step, const float* token_hidden);
  // Whether the step after `step` had better wait for its tokens, since these say what to draft.
  bool would_draft(const Step& step) const;

  // Takes out every sequence for which `is_wanted` holds, whatever its state, and gives up its blocks.
  std::vector<std::shared_ptr<Sequence>> remove_if(const std::function<bool(const Sequence&)>& is_wanted);

  int running_count() const { return static_cast<int>(running_.size()); }
  int waiting_count() const { return static_cast<int>(waiting_.size()); }
  int64_t preemption_count() const { return preemptions_; }
  int64_t prefix_cache_queries() const { return prefix_cache_queries_; }
  int64_t prefix_cache_hits() const { return prefix_cache_hits_; }
  int64_t admitted_count() const { return admitted_; }
  double queue_seconds() const { return queue_seconds_; }

  // Throws Error(kInternal) when blocks and sequences do not add up.
  void check_invariants() const;

 private:
  void plan(Step& step, bool may_preempt);
  void plan_texts();
  void add_spans(Step& step);
  int chunk_of(const Sequence& sequence, int budget) const;
  int plan_images(Sequence& sequence, int tokens, int& fills, bool may_preempt);
  void add_drafts(int free_tokens);
  bool is_redoing(const Sequence& sequence) const;
  void take_own_drafts(Sequence& sequence);
  int missing_pages(const Sequence& sequence) const;
  bool reserve(Sequence& sequence, int tokens, bool may_preempt);
  bool make_room(const Sequence& sequence);
  void preempt_last();
  void admit();
  bool waits_for_prefix(const Sequence& sequence);
  bool has_room(int missing, int reserved) const;
  bool waits_for_disk(Sequence& sequence, int& reserved);
  bool try_admit(Sequence& sequence, int& reserved);
  void give_up_memory(Sequence& sequence, Keep keep);

  SchedulerConfig config_;
  BlockCache& blocks_;
  Speculator* speculator_;
  MovePages move_pages_;
  DiskTier* disk_;
  std::vector<std::shared_ptr<Sequence>> waiting_;  // in order of service
  std::vector<std::shared_ptr<Sequence>> running_;  // in order of service
  int64_t preemptions_ = 0;
  int64_t prefix_cache_queries_ = 0;
  int64_t prefix_cache_hits_ = 0;
  int64_t admitted_ = 0;
  double queue_seconds_ = 0;
};

}  // namespace turbomind
