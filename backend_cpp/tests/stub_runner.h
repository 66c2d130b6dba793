// A model without weights: the next token is a function of all tokens so far, read back from what was "cached".
//
// It keeps the tokens themselves in the cache blocks, so a wrong block table, a missing write or a block shared by
// mistake changes the answer. It can choose tokens too, in steps that begin before the one before is taken.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <vector>

#include "model/model_runner.h"

namespace turbomind::testing {

inline constexpr int kStubVocab = 64;

// Whether what stubs say often follows from the last token alone, so that it can be guessed.
inline bool stubs_repeat_themselves = false;

// The token that follows `tokens`; what the stub predicts and tests compare with.
inline int32_t stub_next(const std::vector<int32_t>& tokens) {
  uint64_t hash = 1469598103934665603ull;
  for (const int32_t token : tokens) hash = (hash ^ static_cast<uint64_t>(token + 1)) * 1099511628211ull;
  if (stubs_repeat_themselves && (hash >> 30) % 5 != 0) return (tokens.back() * 7 + 3) % 16;
  return static_cast<int32_t>((hash >> 20) % kStubVocab);
}

// Whether stubs choose tokens.
inline bool stubs_choose_tokens = false;

class StubRunner final : public ModelRunner {
 public:
  // Called at the start of every forward, with the number of steps so far; may throw.
  std::function<void(int)> on_step = [](int) {};
  // Token whose prediction gives NaN logits; -1: none.
  int32_t poison = -1;
  PictureTraits traits{.width = 1};
  // Whether a fault can be mended, what restarting does, and whether what runs the model is gone.
  bool restarts = false;
  std::function<void()> on_restart = [] {};
  std::atomic<bool> lost{false};
  // Steps that began before the one before was taken.
  std::atomic<int> steps_ahead{0};

  int vocab_size() const override { return kStubVocab; }
  int hidden_size() const override { return 1; }
  size_t block_bytes(int block_len) const override { return static_cast<size_t>(block_len) * sizeof(int32_t); }
  size_t free_cache_memory() override { return size_t{1} << 20; }
  void allocate_cache(const CacheSize& size) override {
    block_len_ = size.block_len;
    cache_.assign(static_cast<size_t>(size.block_count + size.host_block_count) * size.block_len, -1);
  }

  bool can_restart() const override { return restarts; }
  bool is_lost() const override { return lost; }
  void restart() override {
    on_restart();
    lost = false;
    begun_.clear();
    std::fill(cache_.begin(), cache_.end(), -1);
  }

  PictureTraits pictures() const override { return traits; }
  bool chooses_tokens() const override { return chooses_; }

  void begin(const StepInput& input) override {
    on_step(steps_++);
    if (begun_.size() > (chooses_ ? 1u : 0u)) throw std::logic_error("a step began before an earlier one was taken");
    if (!begun_.empty() && !logits_.empty()) throw std::logic_error("a step began before the wanted rows were taken");
    if (!begun_.empty()) ++steps_ahead;
    logits_.clear();
    hidden_.clear();
    for (const auto [from, to] : input.moves) {
      std::copy_n(cache_.begin() + from * block_len_, block_len_, cache_.begin() + to * block_len_);
      std::fill_n(cache_.begin() + from * block_len_, block_len_, -1);
    }
    std::vector<int32_t> chosen(input.spans.size(), kNotChosen);
    for (size_t s = 0; s < input.spans.size(); ++s) {
      const StepSpan& span = input.spans[s];
      for (int i = 0; i < span.count; ++i) {
        int32_t token = input.tokens[static_cast<size_t>(span.first_row + i)];
        if (token < 0) token = chosen_.at(static_cast<size_t>(span_of_unseen(token)));
        if (token < 0 && token != kNotANumber) throw std::logic_error("a token was used that nobody chose");
        slot(span, span.first_position + i) = std::max(token, 0);
      }
      // A row in place of a token is that token's number.
      for (const EmbeddingRange& range : span.embeddings) {
        if (traits.needs_whole && range.end() > span.first_position + span.count)
          throw std::logic_error("a cut picture");
        for (int row = 0; row < range.count; ++row) {
          const int position = range.begin + row;
          if (position < span.first_position || position >= span.first_position + span.count) continue;
          float value = 0;
          range.rows->read(row, 0, 1, &value);
          slot(span, position) = static_cast<int32_t>(value);
        }
      }
      const bool chooses = span.choice != nullptr;
      const int wanted = chooses ? 1 : span.wanted_rows();
      std::vector<int32_t> tokens;
      for (int position = 0; position < span.first_position + span.count; ++position) {
        if (slot(span, position) < 0) throw std::logic_error("a position was read before it was written");
        tokens.push_back(slot(span, position));
        if (position < span.first_position + span.count - wanted) continue;
        const int32_t next = stub_next(tokens);
        if (chooses) {
          chosen[s] = next == poison ? kNotANumber : choose(next, *span.choice, static_cast<int>(tokens.size()));
          continue;
        }
        for (int32_t token = 0; token < kStubVocab; ++token) logits_.push_back(token == next ? 5.0f : 0.0f);
        if (next == poison) logits_.back() = NAN;
        hidden_.push_back(static_cast<float>(position));
      }
    }
    chosen_ = chosen;
    std::erase(chosen, kNotChosen);
    begun_.push_back(std::move(chosen));
  }

  StepOutput take() override {
    taken_.clear();
    for (const int32_t token : begun_.at(0)) taken_.push_back({token, 0, nullptr, nullptr});
    begun_.erase(begun_.begin());
    return {logits_.data(), hidden_.data(), taken_.data()};
  }

 private:
  static constexpr int32_t kNotANumber = -1;
  static constexpr int32_t kNotChosen = -2;

  // The likeliest of the tokens that may come, the lowest among equals.
  static int32_t choose(int32_t next, const TokenChoice& choice, int context) {
    if (!choice.is_greedy) throw std::logic_error("the stub is greedy");
    if (static_cast<int>(choice.tokens->size()) + choice.unseen != context)
      throw std::logic_error("a choice does not know how many tokens there are");
    const auto may_come = [&](int32_t token) {
      const bool is_masked = choice.mask != nullptr && (choice.mask[token / 32] >> token % 32 & 1) == 0;
      return !is_masked && std::count(choice.forbidden.begin(), choice.forbidden.end(), token) == 0;
    };
    if (may_come(next)) return next;
    for (int32_t token = 0; token < kStubVocab; ++token) {
      if (may_come(token)) return token;
    }
    return kNotANumber;
  }

  int32_t& slot(const StepSpan& span, int position) {
    const int32_t block = span.blocks->at(static_cast<size_t>(position / block_len_));
    return cache_.at(static_cast<size_t>(block) * block_len_ + position % block_len_);
  }

  bool chooses_ = stubs_choose_tokens;
  int block_len_ = 0;
  int steps_ = 0;
  std::vector<int32_t> cache_;
  std::vector<float> logits_;
  std::vector<float> hidden_;                // the position of each wanted row
  std::vector<int32_t> chosen_;              // by the step begun last, for each span
  std::vector<std::vector<int32_t>> begun_;  // choices of the steps that were begun and not taken
  std::vector<ChosenToken> taken_;
};

}  // namespace turbomind::testing
