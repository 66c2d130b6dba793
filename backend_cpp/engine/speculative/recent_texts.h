// Texts of requests that have ended, the latest ones, in which those that come find what is said again. Each belongs to
// a scope (SequenceGroup::draft_scope) and is found by that alone.
//
// Used by the step thread only.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/speculative/ngram_index.h"

namespace turbomind {

class RecentTexts {
 public:
  struct Match {
    const NgramIndex* texts = nullptr;  // null: there is none
    NgramIndex::Match at;
  };

  // Keeps at least the last half of `most_tokens`, and at most all of them.
  RecentTexts(int most_tokens, int least, int most)
      : half_(most_tokens / 2), indices_{NgramIndex(least, most), NgramIndex(least, most)} {}

  // The end of a text that is too long is left out.
  void add(std::span<const int32_t> text, uint64_t scope);
  // Valid while generation() is the same: a place then stays in the text, and so in the scope, that it was found in.
  Match find(std::span<const int32_t> text, uint64_t scope) const;
  // How often the oldest texts were dropped.
  uint64_t generation() const { return generation_; }

 private:
  int half_;
  uint64_t generation_ = 0;
  std::pair<NgramIndex, NgramIndex> indices_;  // the latest texts, and those before
};

}  // namespace turbomind
