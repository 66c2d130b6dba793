// The latest texts of finished requests, for prompt lookup by others. Each belongs to a scope
// (SequenceGroup::draft_scope), and only that scope finds it.
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

  // Keeps at least half of `most_tokens` tokens, and at most all.
  RecentTexts(int most_tokens, int least, int most)
      : half_(most_tokens / 2), indices_{NgramIndex(least, most), NgramIndex(least, most)} {}

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

}  // namespace turbomind
