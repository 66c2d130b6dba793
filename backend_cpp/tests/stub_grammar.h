// Grammars that need no library.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
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

// Allows tokens 0 to 9 at even places of the response and only token 11 at odd ones; ends after `length` with token 60.
class PatternGrammar final : public Grammar {
 public:
  explicit PatternGrammar(int length) : length_(length) {}
  std::unique_ptr<GrammarMatcher> new_matcher(const std::vector<int32_t>&) const override {
    return std::make_unique<Matcher>(length_);
  }

 private:
  class Matcher final : public GrammarMatcher {
   public:
    explicit Matcher(int length) : length_(length) {}
    const GrammarState& state() override {
      std::vector<int32_t>& mask = state_.mask;
      mask.assign((kStubVocab + 31) / 32, 0);
      if (position_ == length_) {
        mask[60 / 32] |= 1 << (60 % 32);
      } else if (position_ % 2 == 1) {
        mask[0] |= 1 << 11;
      } else {
        mask[0] |= 0x3FF;
      }
      state_.only_token = only_token(mask);
      return state_;
    }
    void accept(int32_t token) override {
      if (position_++ % 2 == 1 ? token != 11 : token >= 10) throw internal_error("a token outside the response format");
    }

   private:
    GrammarState state_;
    int length_;
    int position_ = 0;
  };

  int length_;
};

// Allows all tokens, until `length` have come and it takes too much to say what may come then.
class CostlyGrammar final : public Grammar {
 public:
  explicit CostlyGrammar(int length) : length_(length) {}
  std::unique_ptr<GrammarMatcher> new_matcher(const std::vector<int32_t>&) const override {
    return std::make_unique<Matcher>(length_);
  }

 private:
  class Matcher final : public GrammarMatcher {
   public:
    explicit Matcher(int left) : left_(left) { state_.mask.assign((kStubVocab + 31) / 32, -1); }
    const GrammarState& state() override { return state_; }
    void accept(int32_t) override {
      if (--left_ == 0) throw invalid_argument("it takes too much");
    }

   private:
    GrammarState state_;
    int left_;
  };

  int length_;
};

class UnusableGrammar final : public Grammar {
 public:
  std::unique_ptr<GrammarMatcher> new_matcher(const std::vector<int32_t>&) const override {
    throw std::runtime_error("no matcher today");
  }
};

// Makes this many matchers, and then no more.
class ScarceGrammar final : public Grammar {
 public:
  explicit ScarceGrammar(int matchers) : left_(matchers) {}
  std::unique_ptr<GrammarMatcher> new_matcher(const std::vector<int32_t>& stops) const override {
    if (left_-- == 0) throw std::runtime_error("no matcher left");
    return PatternGrammar(8).new_matcher(stops);
  }

 private:
  mutable int left_;
};

class PatternCompiler final : public GrammarCompiler {
 public:
  static inline std::atomic<bool> is_blocked{false};

  std::shared_ptr<const Grammar> compile(const std::string& format, const Waiting&) override {
    while (format == "slow" && is_blocked) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (format == "broken") throw invalid_argument("response_format is broken");
    if (format == "unusable") return std::make_shared<UnusableGrammar>();
    if (format == "scarce") return std::make_shared<ScarceGrammar>(2);
    return std::make_shared<PatternGrammar>(8);
  }
};

// State that compiler, grammar and matcher of one library share, and lose with the compiler.
struct GrammarLibrary {
  std::atomic<bool> is_loaded{true};
  std::atomic<int> uses_after_unload{0};

  void use() {
    if (!is_loaded) ++uses_after_unload;
  }
};

// Grammars without an end, which may be used while their compiler lives.
class LibraryCompiler final : public GrammarCompiler {
 public:
  explicit LibraryCompiler(std::shared_ptr<GrammarLibrary> library) : library_(std::move(library)) {}
  ~LibraryCompiler() override { library_->is_loaded = false; }
  std::shared_ptr<const Grammar> compile(const std::string&, const Waiting&) override {
    return std::make_shared<Endless>(library_);
  }

 private:
  class Matcher final : public GrammarMatcher {
   public:
    explicit Matcher(std::shared_ptr<GrammarLibrary> library) : library_(std::move(library)) {}
    ~Matcher() override { library_->use(); }
    const GrammarState& state() override {
      library_->use();
      state_.mask.assign((kStubVocab + 31) / 32, -1);
      return state_;
    }
    void accept(int32_t) override { library_->use(); }

   private:
    GrammarState state_;
    std::shared_ptr<GrammarLibrary> library_;
  };

  class Endless final : public Grammar {
   public:
    explicit Endless(std::shared_ptr<GrammarLibrary> library) : library_(std::move(library)) {}
    ~Endless() override { library_->use(); }
    std::unique_ptr<GrammarMatcher> new_matcher(const std::vector<int32_t>&) const override {
      return std::make_unique<Matcher>(library_);
    }

   private:
    std::shared_ptr<GrammarLibrary> library_;
  };

  std::shared_ptr<GrammarLibrary> library_;
};

}  // namespace turbomind::testing
