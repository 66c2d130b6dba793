// Guesses how sequences go on, from what was said before. A step runs such drafts behind the rows that are due, and
// what comes of these says how many of them were right; so a guess changes when tokens come, never which.
//
// How many drafts are worth their rows follows from what a step costs and the chance that a draft is right: of all
// sequences' drafts, the likeliest first, those are taken with which a step brings most tokens in its time. Where many
// come anyway, or a prompt runs too, a row costs what it brings and nothing is drafted.
//
// Used by the step thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/speculation/prompt_lookup.h"
#include "engine/speculation/speculation_config.h"
#include "engine/speculation/step_cost.h"
#include "engine/stats.h"

namespace turbomind {

// Of one sequence.
struct Drafts {
  std::vector<int32_t> tokens;  // that are only guessed, in the step being built or run
  std::unique_ptr<PromptLookup> lookup;

  int count() const { return static_cast<int>(tokens.size()); }
};

class Speculator {
 public:
  // A sequence that drafts may be made for.
  struct Candidate {
    const std::vector<int32_t>& tokens;  // prompt, then answer
    int prompt_len;
    uint64_t scope;  // in which it finds the texts of others
    Drafts& drafts;  // none yet
    int most;        // that it can take
  };

  explicit Speculator(const SpeculationConfig& config) : shared_(config) {}

  // Drafts for sequences of which a step may hold `room` more rows in all, beside the `rows` it has.
  void draft(std::span<const Candidate> candidates, int rows, int room);
  // Whether there would be drafts for a sequence, beside so many rows, if the step under way brought what is expected.
  bool would_draft(const Candidate& candidate, int rows);

  // A step of so many rows took so long.
  void note_step(int rows, double seconds) { cost_.note(rows, seconds); }
  // Of `drafted` drafts of a sequence the first `accepted` were right.
  void note_drafts(int drafted, int accepted);
  // A sequence has ended that others may find.
  void note_end(std::span<const int32_t> tokens, uint64_t scope) { shared_.texts.add(tokens, scope); }

  const SpeculationStats& stats() const { return stats_; }

 private:
  const PromptLookup& lookup_of(const Candidate& candidate);
  // Whether a step of so many rows has room for drafts that pay.
  bool may_pay(int rows) const { return !shared_.config.is_adaptive || rows < StepCost::kMostRows; }

  SharedLookup shared_;
  StepCost cost_;
  SpeculationStats stats_;
};

}  // namespace turbomind
