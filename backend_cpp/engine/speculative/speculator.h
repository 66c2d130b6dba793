// Speculative decoding: proposes draft tokens from earlier text (prompt lookup), or by a draft model or head. A step
// verifies the drafts, so they change when tokens arrive, never which.
//
// The number of drafts follows from the cost of a step and the chance that a draft is accepted: of all sequences'
// drafts, the most likely first, it takes as many as maximize the step's accepted tokens a second. In steps with many
// tokens, or with a prompt, an additional token costs as much as it gains, and nothing is drafted.
//
// Used by the step thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/speculative/drafter.h"
#include "engine/speculative/prompt_lookup.h"
#include "engine/speculative/speculative_config.h"
#include "engine/stats.h"

namespace turbomind {

// Cost of a step by its tokens, learned from steps that were run: a straight line, which holds well enough for the
// few tokens of steps in which drafts can pay. It counts tokens as the kernels compute them, 1, 2, 4 or 8 at a time.
class StepCost {
 public:
  static constexpr int kTokensAtOnce = 8;  // tokens that are computed at a time, at most
  static constexpr int kMaxTokens = 64;    // steps with more are not looked at

  void record(int tokens, double seconds);
  bool is_known() const { return weight_ > 0; }
  // Of a step, in seconds or, before any was seen, in another unit.
  double of(int tokens) const;

 private:
  static int computed_tokens(int tokens);
  double token() const;

  // Weighted means of computed tokens, of seconds, of their product and of the square of tokens.
  double weight_ = 0, tokens_ = 0, seconds_ = 0, product_ = 0, square_ = 0;
};

class Speculator {
 public:
  using Candidate = Drafter::Candidate;

  // `model`: null: none; must outlive this.
  explicit Speculator(const SpeculativeConfig& config, Drafter* model = nullptr) : shared_(config), model_(model) {}

  // The maximum number of drafts of a sequence in a step.
  int max_drafts() const { return shared_.config.num_speculative_tokens; }

  // From now on, a rejected draft makes the sequence's tokens before it run again (recurrent states).
  void expect_redone_tokens() { has_redone_tokens_ = true; }

  // Whether drafts can pay in a step of this many tokens; otherwise draft() makes none.
  bool may_pay(int step_tokens) const { return !shared_.config.is_adaptive || step_tokens < StepCost::kMaxTokens; }
  // Drafts for sequences in a step of `step_tokens`, at most `free_tokens` drafts in all.
  void draft(std::span<const Candidate> candidates, int step_tokens, int free_tokens);
  // Whether a sequence would get drafts in a step of this many tokens, if the step in flight yields the expected token.
  bool would_draft(const Candidate& candidate, int step_tokens);

  // Passes on a step's hidden states (Drafter::see).
  void record_hidden(std::span<const Drafter::Seen> all, const float* token_hidden) {
    if (model_ != nullptr) model_->see(all, token_hidden);
  }
  // Records the seconds of a step of this many tokens, drafting included.
  void record_step(int step_tokens, double seconds) { cost_.record(step_tokens, seconds - model_seconds_); }
  // Records that the first `accepted` drafts of a sequence were accepted.
  void record_drafts(Drafts& drafts, int accepted);
  // Adds a finished sequence's text for others to draft from.
  void record_end(std::span<const int32_t> tokens, uint64_t scope) { shared_.texts.add(tokens, scope); }

  const SpeculationStats& stats() const { return stats_; }

 private:
  // Until it is measured, the acceptance of model drafts is that after a match of this many tokens.
  static constexpr int kAsGoodAsRun = 12;

  const PromptLookup& lookup_of(const Candidate& candidate);

  double model_chance() const { return model_chances_.of(kAsGoodAsRun); }
  // Tokens a second of one sequence alone with the best number of drafts. chance(i): the probability that draft i is
  // accepted if those before it are.
  template <class Chance>
  double best_rate(int max_drafts, double seconds_a_draft, Chance&& chance) const;
  bool is_model_better(const Candidate& candidate) const;
  // Returns the number of drafts.
  int look_up(std::span<const Candidate> candidates, int step_tokens, int free_tokens);
  void draft_with_model(std::span<const Candidate> candidates, int step_tokens, int free_tokens);
  int model_drafts_that_pay(int sequences, int missing_tokens, int step_tokens, int max_drafts);

  SharedLookup shared_;
  StepCost cost_;
  Drafter* model_;
  MatchChances model_chances_;
  StepCost model_cost_;
  double model_seconds_ = 0;  // for drafts of the step being built or run
  bool has_redone_tokens_ = false;
  int steps_without_model_ = 0;  // in which it could have drafted
  SpeculationStats stats_;
};

}  // namespace turbomind
