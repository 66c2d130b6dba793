// Prompt lookup (Saxena, 2023) for one sequence: drafts the continuation of the longest match in its own text or in
// recent texts of others.
//
// Used by the step thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/speculative/speculative_config.h"

namespace turbomind {

// How often a text that repeats continues as it did before, by how many tokens of it repeat. Learned from what came.
class MatchChances {
 public:
  // Where little is known yet, `prior` counts, which must outlive this; null: a draft.
  explicit MatchChances(const MatchChances* prior = nullptr) : prior_(prior) {}

  // After a run of `length` tokens, 0 where the last one was another, the same token has come again, or another one.
  void record(int length, bool came);
  // The chance that it comes, between 0 and 1.
  double of(int length) const { return of_class(class_of(length)); }

 private:
  static constexpr size_t kClasses = 8;  // lengths 0, 1, 2, 3 to 4, 5 to 8, 9 to 16, ...
  struct Seen {
    double came = 0;
    double all = 0;
  };

  static size_t class_of(int length);
  double of_class(size_t index) const;

  const MatchChances* prior_;
  std::array<Seen, kClasses> seen_{};
};

// Finds the longest suffix of a text that occurs in the texts added before.
//
// N-grams of `min_length` tokens are found by hash, the latest place first; among the few places compared, the one with
// the longest match is used, as in LZ77 (Ziv and Lempel, 1977). Places are compared token by token.
class NgramIndex {
 public:
  struct Match {
    int position = -1;  // of the token that followed; -1: none
    int length = 0;     // of the match before it, at most max_length
  };

  NgramIndex(int min_length, int max_length) : min_length_(min_length), max_length_(max_length) {}

  int size() const { return static_cast<int>(tokens_.size()); }
  int32_t token(int position) const { return tokens_[static_cast<size_t>(position)]; }

  // Adds a token. Texts of other scopes are not found.
  void append(int32_t token, uint64_t scope = 0);
  // Ends a text: matches do not cross texts.
  void end_text();
  // The place where `text` may continue; its last tokens may be the last that were added.
  Match find(std::span<const int32_t> text, uint64_t scope = 0) const;
  // The number of tokens before `position` that match the end of `text`, at most max_length_.
  int length_at(std::span<const int32_t> text, int position) const;
  void clear() { *this = NgramIndex(min_length_, max_length_); }

 private:
  uint64_t key_of(const int32_t* run, uint64_t scope) const;

  int min_length_;
  int max_length_;
  std::vector<int32_t> tokens_;  // kBetween is between texts
  std::vector<int> earlier_;     // by place, the previous place with the same n-gram before it; -1: none
  int text_begin_ = 0;
  std::unordered_map<uint64_t, int> latest_;  // by n-gram hash, the latest place after such an n-gram
};

// The latest texts of finished requests, for prompt lookup by others. Each belongs to a scope
// (SequenceGroup::draft_scope), and only that scope finds it.
//
// Used by the step thread only.
class RecentTexts {
 public:
  struct Match {
    const NgramIndex* texts = nullptr;  // null: there is none
    NgramIndex::Match at;
  };

  // Keeps at least half of `max_tokens` tokens, and at most all.
  RecentTexts(int max_tokens, int min_length, int max_length)
      : half_(max_tokens / 2), indices_{NgramIndex(min_length, max_length), NgramIndex(min_length, max_length)} {}

  // A text that is too long is truncated at its end.
  void add(std::span<const int32_t> text, uint64_t scope);
  // Valid while generation() is unchanged.
  Match find(std::span<const int32_t> text, uint64_t scope) const;
  // How often the oldest texts were dropped.
  uint64_t generation() const { return generation_; }

 private:
  int half_;
  uint64_t generation_ = 0;
  std::pair<NgramIndex, NgramIndex> indices_;  // the latest texts, and those before
};

// State that all sequences share.
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
        index_(shared.config.prompt_lookup_min, shared.config.prompt_lookup_max),
        chances_(&shared.chances) {}

  // Adds the sequence's new tokens; `tokens` only grows.
  void read(const std::vector<int32_t>& tokens);
  bool has_draft() const { return match_.texts != nullptr; }
  // Draft token `index`; -1: the draft is shorter.
  int32_t token(int index) const;
  // The probability that draft token `index` is accepted if those before it are.
  double chance(int index) const { return chances_.of(match_.at.length + index); }

 private:
  void search(std::span<const int32_t> text);
  void go_on_behind(const RecentTexts::Match& before, std::span<const int32_t> text);

  SharedLookup& shared_;
  uint64_t scope_;
  int prompt_len_;
  NgramIndex index_;
  MatchChances chances_;
  RecentTexts::Match match_;
  size_t searched_ = 0;      // tokens of the text for which match_ was found
  uint64_t generation_ = 0;  // of the recent texts, when match_ was found
  int astray_ = 0;           // tokens since the last match
};

}  // namespace turbomind
