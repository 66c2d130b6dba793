// Prompt lookup (Saxena, 2023) for one sequence: drafts the continuation of the longest match in its own text or in
// recent texts of others.
//
// Used by the step thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/speculative/match_chances.h"
#include "engine/speculative/ngram_index.h"
#include "engine/speculative/recent_texts.h"
#include "engine/speculative/speculative_config.h"

namespace turbomind {

// What all sequences share.
struct SharedLookup {
  explicit SharedLookup(const SpeculativeConfig& config)
      : config(config), texts(config.shared_tokens, config.prompt_lookup_min, config.prompt_lookup_max) {}

  SpeculativeConfig config;
  MatchChances chances;
  RecentTexts texts;
};

class PromptLookup {
 public:
  // `shared` must outlive it. Acceptance is measured on tokens from `prompt_len` on.
  PromptLookup(SharedLookup& shared, uint64_t scope, int prompt_len)
      : shared_(shared),
        scope_(scope),
        prompt_len_(prompt_len),
        own_(shared.config.prompt_lookup_min, shared.config.prompt_lookup_max),
        chances_(&shared.chances) {}

  // Adds the sequence's new tokens; `tokens` only grows.
  void read(const std::vector<int32_t>& tokens);
  bool has_draft() const { return texts_ != nullptr; }
  // Draft token `index`; -1: the draft is shorter.
  int32_t token(int index) const;
  // The probability that draft token `index` is accepted if those before it are.
  double chance(int index) const { return chances_.of(match_.length + index); }

 private:
  void look(std::span<const int32_t> text);
  void go_on_behind(const NgramIndex* texts, NgramIndex::Match before, std::span<const int32_t> text);

  SharedLookup& shared_;
  uint64_t scope_;
  int prompt_len_;
  NgramIndex own_;
  MatchChances chances_;
  const NgramIndex* texts_ = nullptr;  // of match_; null: there is none
  NgramIndex::Match match_;
  size_t looked_ = 0;        // tokens of the text for which match_ was found
  uint64_t generation_ = 0;  // of the recent texts, when match_ was found
  int astray_ = 0;           // tokens since the last match
};

}  // namespace turbomind
