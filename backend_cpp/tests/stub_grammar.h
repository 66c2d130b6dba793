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
    const GrammarState* state() override {
      std::vector<int32_t>& mask = state_.mask;
      mask.assign((kStubVocab + 31) / 32, 0);
      if (place_ == length_) {
        mask[60 / 32] |= 1 << (60 % 32);
      } else if (place_ % 2 == 1) {
        mask[0] |= 1 << 11;
      } else {
        mask[0] |= 0x3FF;
      }
      state_.only_token = only_token(mask);
      return &state_;
    }
    bool knows_at_once() override { return true; }
    std::optional<Error> failure() override { return std::nullopt; }
    void accept(int32_t token) override {
      if (place_++ % 2 == 1 ? token != 11 : token >= 10) throw internal_error("a token outside the response format");
    }

   private:
    GrammarState state_;
    int length_;
    int place_ = 0;
  };

  int length_;
};

// Allows token 7 and nothing else, `length` times and then token 60; what may come is known when it is asked to be.
class LateGrammar final : public Grammar {
 public:
  struct Control {
    int places_known = 0;        // of the response, from its beginning
    std::optional<Error> fails;  // in place of what is not known
  };

  LateGrammar(int length, std::shared_ptr<Control> control) : length_(length), control_(std::move(control)) {}
  std::unique_ptr<GrammarMatcher> new_matcher(const std::vector<int32_t>&) const override {
    return std::make_unique<Matcher>(length_, control_);
  }

 private:
  class Matcher final : public GrammarMatcher {
   public:
    Matcher(int length, std::shared_ptr<Control> control) : length_(length), control_(std::move(control)) {}
    const GrammarState* state() override {
      if (place_ >= control_->places_known) return nullptr;
      state_.mask.assign((kStubVocab + 31) / 32, 0);
      state_.mask[place_ == length_ ? 60 / 32 : 0] |= 1 << (place_ == length_ ? 60 % 32 : 7);
      return &state_;
    }
    std::optional<Error> failure() override { return state() != nullptr ? std::nullopt : control_->fails; }
    void accept(int32_t token) override {
      if (token != 7) throw internal_error("a token outside the response format");
      ++place_;
    }

   private:
    GrammarState state_;
    int length_;
    std::shared_ptr<Control> control_;
    int place_ = 0;
  };

  int length_;
  std::shared_ptr<Control> control_;
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
  static inline std::atomic<bool> hold{false};

  void notify(std::function<void()>) override {}

  std::shared_ptr<const Grammar> compile(const std::string& format, const Waiting&) override {
    while (format == "slow" && hold) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (format == "broken") throw invalid_argument("response_format is broken");
    if (format == "unusable") return std::make_shared<UnusableGrammar>();
    if (format == "scarce") return std::make_shared<ScarceGrammar>(2);
    return std::make_shared<PatternGrammar>(8);
  }
};

// What compiler, grammar and matcher of one library share, and lose with the compiler.
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
  void notify(std::function<void()>) override {}
  std::shared_ptr<const Grammar> compile(const std::string&, const Waiting&) override {
    return std::make_shared<Endless>(library_);
  }

 private:
  class Matcher final : public GrammarMatcher {
   public:
    explicit Matcher(std::shared_ptr<GrammarLibrary> library) : library_(std::move(library)) {}
    ~Matcher() override { library_->use(); }
    const GrammarState* state() override {
      library_->use();
      state_.mask.assign((kStubVocab + 31) / 32, -1);
      return &state_;
    }
    std::optional<Error> failure() override { return std::nullopt; }
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
