// Drafts how sequences continue, from what was said before, from what a grammar lets come alone, or by a smaller model
// or a head. A step runs such drafts after the tokens that are due, and what comes of these says how many of them were
// right; so a draft changes when tokens come, never which.
//
// How many drafts are worth their tokens follows from what a step costs and the chance that a draft is right: of all
// sequences' drafts, the most likely first, those are taken with which a step brings most tokens in its time. Where
// many come anyway, or a prompt runs too, a token costs what it brings and nothing is drafted.
//
// Used by the step thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/generation/generation.h"
#include "engine/speculative/drafter.h"
#include "engine/speculative/likely_tokens.h"
#include "engine/speculative/prompt_lookup.h"
#include "engine/speculative/speculative_config.h"
#include "engine/speculative/step_cost.h"
#include "engine/stats.h"

namespace turbomind {

// Of one sequence.
struct Drafts {
  std::vector<int32_t> tokens;  // that are only drafted, in the step being built or run
  bool are_the_models = false;  // they come from the drafter
  std::vector<int32_t> forced;  // what a grammar lets come alone is likely written so; empty: another text is drafted
  std::unique_ptr<PromptLookup> lookup;
  int cached = 0;       // leading tokens that the drafter has computed
  DraftCache cache;     // a draft model's
  HiddenStates hidden;  // a head's

  int count() const { return static_cast<int>(tokens.size()); }
};

class Speculator {
 public:
  // A sequence that drafts may be made for.
  struct Candidate {
    const std::vector<int32_t>& tokens;  // prompt, then response
    int prompt_len;
    uint64_t scope;  // in which it finds the texts of others
    Drafts& drafts;  // none yet
    int most;        // that it can take
    // What a draft model needs; null: it makes none for this sequence.
    const PageTables* tables = nullptr;  // with places for the tokens and `most` drafts
    int cached_tokens = 0;               // as in Drafter::Work
    Generation* generation = nullptr;
  };

  // `model`: null where there is none; `tokens`: null where no response has a grammar. Both must outlive this.
  explicit Speculator(const SpeculativeConfig& config, Drafter* model = nullptr, LikelyTokens* tokens = nullptr)
      : shared_(config), model_(model), tokens_(tokens) {}

  // The most drafts of a sequence in a step.
  int most_drafts() const { return shared_.config.num_speculative_tokens; }

  // From now on a wrong draft makes a sequence's tokens before it run again.
  void expect_redone_tokens() { has_redone_tokens_ = true; }

  // Whether drafts may be worth it alongside this many tokens; else draft() makes none.
  bool may_pay(int step_tokens) const { return !shared_.config.is_adaptive || step_tokens < StepCost::kMaxTokens; }
  // Drafts for sequences of which a step may hold `free_tokens` more tokens in all, after its `step_tokens`.
  void draft(std::span<const Candidate> candidates, int step_tokens, int free_tokens);
  // Whether there would be drafts for a sequence, alongside this many tokens, if the step under way brought what is
  // expected.
  bool would_draft(const Candidate& candidate, int step_tokens);

  // A step was run, of which the runner has handed out the hidden states of all tokens (Drafter::see).
  void note_hidden(std::span<const Drafter::Seen> all, const float* token_hidden);
  // A step of this many tokens took so long, with the drafts that were made for it.
  void note_step(int step_tokens, double seconds) { cost_.note(step_tokens, seconds - model_seconds_); }
  // Of the drafts of a sequence the first `accepted` were right.
  void note_drafts(Drafts& drafts, int accepted);
  // A sequence has ended that others may find.
  void note_end(std::span<const int32_t> tokens, uint64_t scope) { shared_.texts.add(tokens, scope); }

  const SpeculationStats& stats() const { return stats_; }

 private:
  // Until it is known, a model's drafts and forced texts count as those after a run of this many tokens.
  static constexpr int kAsGoodAsRun = 12;

  const PromptLookup& lookup_of(const Candidate& candidate);

  double model_chance() const { return model_chances_.of(kAsGoodAsRun); }
  // Tokens in the time of a sequence alone, with as many drafts as are best. chance(i): that draft number i is right if
  // those before it are.
  template <class Chance>
  double best_rate(int most, double seconds_a_draft, Chance&& chance) const;
  bool is_model_better(const Candidate& candidate) const;
  // The text that a grammar forces, where nothing that was said before says more.
  void find_forced(const Candidate& candidate, const PromptLookup& lookup);
  // Draft number `index` of a sequence without the model, -1: there are no more; and the chance that it is right if
  // those before it are.
  static int32_t found_token(const Drafts& drafts, int index);
  double found_chance(const Drafts& drafts, int index) const;
  // Returns how many drafts there are.
  int look_up(std::span<const Candidate> candidates, int step_tokens, int free_tokens);
  void ask_model(std::span<const Candidate> candidates, int step_tokens, int free_tokens);
  int model_drafts_that_pay(int sequences, int missing_tokens, int step_tokens, int most);

  SharedLookup shared_;
  StepCost cost_;
  Drafter* model_;
  LikelyTokens* tokens_;
  MatchChances model_chances_;
  MatchChances forced_chances_;
  StepCost model_cost_;
  double model_seconds_ = 0;  // of the step being built or run
  bool has_redone_tokens_ = false;
  int steps_without_model_ = 0;  // in which it could have been asked
  SpeculationStats stats_;
};

}  // namespace turbomind
