// A model without weights: the next token is a function of all tokens so far, read back from what was "cached".
//
// It keeps the tokens themselves in the cache blocks, so a wrong block table, a missing write or a block shared by
// mistake changes the answer.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <vector>

#include "model/model_runner.h"

namespace turbomind::testing {

inline constexpr int kStubVocab = 64;

// The token that follows `tokens`; what the stub predicts and tests compare with.
inline int32_t stub_next(const std::vector<int32_t>& tokens) {
  uint64_t hash = 1469598103934665603ull;
  for (const int32_t token : tokens) hash = (hash ^ static_cast<uint64_t>(token + 1)) * 1099511628211ull;
  return static_cast<int32_t>((hash >> 20) % kStubVocab);
}

class StubRunner final : public ModelRunner {
 public:
  // Called at the start of every forward, with the number of steps so far; may throw.
  std::function<void(int)> on_step = [](int) {};
  // Token whose prediction gives NaN logits; -1: none.
  int32_t poison = -1;

  int vocab_size() const override { return kStubVocab; }
  int hidden_size() const override { return 1; }
  size_t block_bytes(int block_len) const override { return static_cast<size_t>(block_len) * sizeof(int32_t); }
  size_t free_cache_memory() override { return size_t{1} << 20; }
  void allocate_cache(int block_count, int block_len) override {
    block_len_ = block_len;
    cache_.assign(static_cast<size_t>(block_count) * block_len, -1);
  }

  StepOutput forward(const StepInput& input) override {
    on_step(steps_++);
    logits_.clear();
    hidden_.clear();
    for (const StepSpan& span : input.spans) {
      for (int i = 0; i < span.count; ++i) slot(span, span.first_position + i) = input.tokens[span.first_row + i];
      const int wanted = span.wanted == SpanRows::kNone ? 0 : span.wanted == SpanRows::kLast ? 1 : span.count;
      std::vector<int32_t> tokens;
      for (int position = 0; position < span.first_position + span.count; ++position) {
        if (slot(span, position) < 0) throw std::logic_error("a position was read before it was written");
        tokens.push_back(slot(span, position));
        if (position < span.first_position + span.count - wanted) continue;
        const int32_t next = stub_next(tokens);
        for (int32_t token = 0; token < kStubVocab; ++token) logits_.push_back(token == next ? 5.0f : 0.0f);
        if (next == poison) logits_.back() = NAN;
        hidden_.push_back(static_cast<float>(position));
      }
    }
    return {logits_.data(), hidden_.data()};
  }

 private:
  int32_t& slot(const StepSpan& span, int position) {
    const int32_t block = span.blocks->at(static_cast<size_t>(position / block_len_));
    return cache_.at(static_cast<size_t>(block) * block_len_ + position % block_len_);
  }

  int block_len_ = 0;
  int steps_ = 0;
  std::vector<int32_t> cache_;
  std::vector<float> logits_;
  std::vector<float> hidden_;  // the position of each wanted row
};

}  // namespace turbomind::testing
