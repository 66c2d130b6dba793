// Grammars that need no library.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/token_trie.h"
#include "tests/stub_runner.h"

namespace turbomind::testing {

// A grammar whose matchers go by the number of tokens that have come.
class StubGrammar : public Grammar {
 public:
  using Mask = std::function<std::vector<int32_t>(int position)>;
  using Accept = std::function<void(int position, int32_t token)>;
  // `matchers`: how many there can be; -1: any number.
  StubGrammar(Mask mask, Accept accept, int matchers = -1)
      : mask_(std::move(mask)), accept_(std::move(accept)), left_(matchers) {}
  std::unique_ptr<GrammarMatcher> new_matcher(const std::vector<int32_t>&, bool) const override {
    if (left_ == 0) throw std::runtime_error("no matcher left");
    left_ -= left_ > 0;
    return std::make_unique<Matcher>(mask_, accept_);
  }

 private:
  class Matcher final : public GrammarMatcher {
   public:
    Matcher(Mask mask, Accept accept) : mask_(std::move(mask)), accept_(std::move(accept)) {}
    const GrammarState& state() override {
      state_.mask = mask_(position_);
      state_.only_token = only_token(state_.mask);
      return state_;
    }
    void accept(int32_t token) override { accept_(position_++, token); }

   private:
    const Mask mask_;
    const Accept accept_;
    GrammarState state_;
    int position_ = 0;
  };

  const Mask mask_;
  const Accept accept_;
  mutable int left_;
};

inline std::vector<int32_t> every_token() {
  return std::vector<int32_t>((kStubVocab + 31) / 32, -1);
}

// Allows tokens 0 to 9 at even places of the response and only token 11 at odd ones; ends after `length` with token 60.
class PatternGrammar final : public StubGrammar {
 public:
  explicit PatternGrammar(int length, int matchers = -1) : StubGrammar(mask_of(length), accept, matchers) {}

 private:
  static Mask mask_of(int length) {
    return [length](int position) {
      std::vector<int32_t> mask((kStubVocab + 31) / 32, 0);
      if (position != length) mask[0] = position % 2 == 1 ? 1 << 11 : 0x3FF;
      if (position == length) allow(mask, 60);
      return mask;
    };
  }
  static void accept(int position, int32_t token) {
    if (position % 2 == 1 ? token != 11 : token >= 10) throw internal_error("a token outside the response format");
  }
};

// Allows all tokens, until `length` have come and it takes too much to say what may come then.
class CostlyGrammar final : public StubGrammar {
 public:
  explicit CostlyGrammar(int length)
      : StubGrammar([](int) { return every_token(); },
                    [length](int position, int32_t) {
                      if (position + 1 == length) throw invalid_argument("it takes too much");
                    }) {}
};

class PatternCompiler final : public GrammarCompiler {
 public:
  static inline std::atomic<bool> is_blocked{false};

  std::shared_ptr<const Grammar> compile(const std::string& format, const Waiting&) override {
    while (format == "slow" && is_blocked) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (format == "broken") throw invalid_argument("response_format is broken");
    return std::make_shared<PatternGrammar>(8, format == "unusable" ? 0 : format == "scarce" ? 2 : -1);
  }
};

}  // namespace turbomind::testing
