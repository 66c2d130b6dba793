// Detector of a response that only repeats one span of tokens.
//
// A span of p tokens that has come k times in a row leaves (k - 1) p tokens each equal to the one p before it. So there
// is one count for each p, of how many tokens in a row are; a token costs one pass over all of them.
//
// Used by the step thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace turbomind {

class RepetitionDetector {
 public:
  static constexpr int kMaxSpanLen = 64;
  static constexpr int kMinTokens = 256;  // of the repetitions together: at least four of the longest span

  RepetitionDetector() { last_.fill(-1); }

  // Takes the next token. Whether the last tokens are repetitions of a span.
  bool advance(int32_t token) {
    const int32_t* last = &last_[static_cast<size_t>(next_)];  // the oldest first
    int32_t max_repeated = 0;
    for (int i = 0; i < kMaxSpanLen; ++i) {
      same_[static_cast<size_t>(i)] = last[i] == token ? same_[static_cast<size_t>(i)] + 1 : 0;
      const int32_t tokens = same_[static_cast<size_t>(i)] + kMaxSpanLen - i;
      max_repeated = max_repeated > tokens ? max_repeated : tokens;
    }
    last_[static_cast<size_t>(next_)] = last_[static_cast<size_t>(next_ + kMaxSpanLen)] = token;
    next_ = (next_ + 1) % kMaxSpanLen;
    return max_repeated >= kMinTokens;
  }

 private:
  std::array<int32_t, size_t{2} * kMaxSpanLen> last_;  // twice, so that those from next_ on are in order
  std::array<int32_t, kMaxSpanLen> same_{};            // of a span of kMaxSpanLen - i tokens
  int next_ = 0;
};

}  // namespace turbomind
