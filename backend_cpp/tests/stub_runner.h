// A model without weights: the next token is a function of all tokens so far, read back from what was "cached".
//
// It keeps the tokens themselves in the cache blocks, so a wrong block table, a missing write or a block shared by
// mistake changes the response. With groups of other kinds too, it compares what these hold with that: a window's last
// tokens, and a state, which is a hash of all. It can choose tokens too, in steps that begin before the one before is
// taken.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>
#include <vector>

#include "model/model_runner.h"
#include "tests/cache_plans.h"

namespace turbomind::testing {

inline constexpr int kStubVocab = 64;

// Whether what stubs say often follows from the last token alone, so that it can be drafted.
inline bool stubs_repeat_themselves = false;

// The token that follows `tokens`; what the stub predicts and tests compare with.
inline int32_t stub_next(const std::vector<int32_t>& tokens) {
  uint64_t hash = 1469598103934665603ull;
  for (const int32_t token : tokens) hash = (hash ^ static_cast<uint64_t>(token + 1)) * 1099511628211ull;
  if (stubs_repeat_themselves && (hash >> 30) % 5 != 0) return (tokens.back() * 7 + 3) % 16;
  return static_cast<int32_t>((hash >> 20) % kStubVocab);
}

// Whether stubs choose tokens.
inline bool stubs_sample_tokens = false;

// Whether stubs have groups with a window and with a state too.
inline bool stubs_have_groups = false;
inline constexpr int kStubWindow = 6;

// Whether stubs look at images by cross-attention.
inline bool stubs_cross_attention = false;

class StubRunner final : public ModelRunner, public RunnerProcesses {
 public:
  // Called at the start of every forward, with the number of steps so far; may throw.
  std::function<void(int)> on_step = [](int) {};
  // Token whose prediction gives NaN logits; -1: none.
  int32_t poison = -1;
  using ModelRunner::traits_;
  // Effect of a restart, and whether what runs the model is gone.
  std::function<void()> on_restart = [] {};
  std::atomic<bool> lost{false};
  // Steps that began before the one before was taken.
  std::atomic<int> steps_ahead{0};
  std::atomic<int> times_lowered{0};

  StubRunner()
      : ModelRunner({.vocab_size = kStubVocab,
                     .hidden_size = 1,
                     .images = {.width = 1, .has_cross_attention = stubs_cross_attention},
                     .samples_on_device = stubs_sample_tokens}) {}

  std::vector<CacheGroup> cache_groups(const StepLimits& limits) const override {
    std::vector<CacheGroup> groups = {small_group(MemoryKind::kPaged, limits.block_len)};
    if (stubs_have_groups) {
      groups.push_back(small_group(MemoryKind::kWindow, limits.block_len, kStubWindow, 2));
      groups.push_back(small_group(MemoryKind::kState, limits.block_len));
    }
    if (stubs_cross_attention) groups.push_back(small_group(MemoryKind::kCross, limits.block_len));
    return groups;
  }
  size_t free_cache_memory() override { return size_t{1} << 20; }
  std::byte* allocate_cache(const CacheShare& share) override {
    plan_ = share.plan;
    block_len_ = share.plan.block_len;
    states_.assign(static_cast<size_t>(share.size.page_count + share.size.host_page_count), {});
    cache_.assign(static_cast<size_t>(share.size.page_count + share.size.host_page_count) * block_len_, -1);
    return nullptr;
  }
  void move_pages(const std::vector<PageMove>& moves) override {
    for (const auto [from, to] : moves) {
      std::copy_n(cache_.begin() + from * block_len_, block_len_, cache_.begin() + to * block_len_);
      states_[static_cast<size_t>(to)] = states_[static_cast<size_t>(from)];
    }
  }

  // A page: its tokens, and of a state after how many tokens it is and their hash.
  size_t kept_page_bytes() const override { return static_cast<size_t>(block_len_) * sizeof(int32_t) + 16; }
  void read_pages(std::span<const int32_t> pages, std::byte* to) override {
    for (const int32_t page : pages) {
      const size_t tokens = static_cast<size_t>(block_len_) * sizeof(int32_t);
      std::memcpy(to, &cache_.at(static_cast<size_t>(page) * block_len_), tokens);
      const std::map<int, uint64_t>& state = states_.at(static_cast<size_t>(page));
      std::array<uint64_t, 2> words{};
      if (!state.empty()) words = {static_cast<uint64_t>(state.begin()->first), state.begin()->second};
      std::memcpy(to + tokens, words.data(), 16);
      to += kept_page_bytes();
    }
  }
  void write_pages(std::span<const int32_t> pages, const std::byte* from) override {
    for (const int32_t page : pages) {
      const size_t tokens = static_cast<size_t>(block_len_) * sizeof(int32_t);
      std::memcpy(&cache_.at(static_cast<size_t>(page) * block_len_), from, tokens);
      std::array<uint64_t, 2> words{};
      std::memcpy(words.data(), from + tokens, 16);
      std::map<int, uint64_t>& state = states_.at(static_cast<size_t>(page));
      state.clear();
      if (words[0] > 0) state[static_cast<int>(words[0])] = words[1];
      from += kept_page_bytes();
    }
  }

  void lower_priority() override { ++times_lowered; }

  bool is_lost() const override { return lost; }
  void on_loss(std::function<void()>) override {}
  void restart() override {
    on_restart();
    lost = false;
    begun_.clear();
    std::fill(cache_.begin(), cache_.end(), -1);
  }

  void launch(const StepInput& input) override {
    on_step(steps_++);
    if (begun_.size() > (traits_.samples_on_device ? 1u : 0u))
      throw std::logic_error("a step began before an earlier one was taken");
    if (!begun_.empty() && !logits_.empty()) throw std::logic_error("a step began before the wanted rows were taken");
    if (!begun_.empty()) ++steps_ahead;
    logits_.clear();
    hidden_.clear();
    std::vector<int32_t> chosen(input.spans.size(), kNotChosen);
    for (size_t s = 0; s < input.spans.size(); ++s) {
      const StepSpan& span = input.spans[s];
      for (int i = 0; i < span.count; ++i) {
        int32_t token = input.tokens[static_cast<size_t>(span.first_token + i)];
        if (token < 0) token = chosen_.at(static_cast<size_t>(span_of_in_flight(token)));
        if (token < 0 && token != kNotANumber) throw std::logic_error("a token was used that nobody chose");
        slot(span, span.first_position + i) = std::max(token, 0);
      }
      // A row in place of a token is that token's number.
      for (const EmbeddingRange& range : span.embedded()) {
        if (traits_.images.needs_whole && range.end() > span.first_position + span.count)
          throw std::logic_error("a cut image");
        for (int row = 0; row < range.count; ++row) {
          const int position = range.begin + row;
          if (position < span.first_position || position >= span.first_position + span.count) continue;
          float value = 0;
          range.rows->read(row, 0, 1, &value);
          slot(span, position) = static_cast<int32_t>(value);
        }
      }
      if (plan_.groups.size() > 1) check_groups(span);
      const bool samples = span.choice != nullptr;
      const int requested = samples ? 1 : span.logit_rows();
      std::vector<int32_t> tokens;
      for (int position = 0; position < span.first_position + span.count; ++position) {
        if (slot(span, position) < 0) throw std::logic_error("a position was read before it was written");
        tokens.push_back(slot(span, position));
        if (position < span.first_position + span.count - requested) continue;
        const int32_t next = stub_next(tokens);
        if (samples) {
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

  StepOutput collect() override {
    taken_.clear();
    for (const int32_t token : begun_.at(0)) taken_.push_back({token, 0, nullptr, nullptr});
    begun_.erase(begun_.begin());
    return {logits_.data(), hidden_.data(), taken_.data()};
  }

 private:
  static constexpr int32_t kNotANumber = -1;
  static constexpr int32_t kNotChosen = -2;

  // The most likely of the tokens that may come, the lowest among equals.
  static int32_t choose(int32_t next, const SamplingMetadata& choice, int context) {
    if (!choice.is_greedy) throw std::logic_error("the stub is greedy");
    if (static_cast<int>(choice.tokens->size()) + choice.in_flight != context)
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
    const int32_t block = span.tables->front().at(static_cast<size_t>(position / block_len_));
    return cache_.at(static_cast<size_t>(block) * block_len_ + position % block_len_);
  }

  // The other groups hold what the first one does.
  void check_groups(const StepSpan& span) {
    const int end = span.first_position + span.count;
    std::vector<uint64_t> hashes = {1469598103934665603ull};
    for (int position = 0; position < end; ++position) {
      hashes.push_back((hashes.back() ^ static_cast<uint64_t>(slot(span, position))) * 1099511628211ull);
    }
    for (const CacheGroup& group : plan_.groups) {
      for (int page = 0; page < group.pages; ++page) {
        const std::vector<int32_t>& table = span.tables->at(static_cast<size_t>(group.first_table + page));
        if (group.kind == MemoryKind::kWindow) check_window(span, table, group.window);
        if (group.kind != MemoryKind::kState) continue;
        std::map<int, uint64_t>& state = states_.at(static_cast<size_t>(table.at(0)));
        if (span.first_position > 0 &&
            state.at(span.first_position) != hashes[static_cast<size_t>(span.first_position)])
          throw std::logic_error("a state is another sequence's");
        state = {{end, hashes[static_cast<size_t>(end)]}};
      }
    }
  }
  void check_window(const StepSpan& span, const std::vector<int32_t>& table, int window) {
    const auto slot_at = [&](int position) -> int32_t& {
      const int32_t page = table.at(static_cast<size_t>(position / block_len_));
      return cache_.at(static_cast<size_t>(page) * block_len_ + position % block_len_);
    };
    const int end = span.first_position + span.count;
    for (int position = span.first_position; position < end; ++position) slot_at(position) = slot(span, position);
    for (int position = std::max(0, span.first_position - window + 1); position < end; ++position) {
      if (slot_at(position) != slot(span, position)) throw std::logic_error("a window has other tokens");
    }
  }

  CachePlan plan_;
  std::vector<std::map<int, uint64_t>> states_;  // by page: hash of this many tokens
  int block_len_ = 0;
  int steps_ = 0;
  std::vector<int32_t> cache_;
  std::vector<float> logits_;
  std::vector<float> hidden_;                // the position of each wanted row
  std::vector<int32_t> chosen_;              // by the step begun last, for each span
  std::vector<std::vector<int32_t>> begun_;  // choices of the steps that were begun and not taken
  std::vector<SampledToken> taken_;
};

}  // namespace turbomind::testing
