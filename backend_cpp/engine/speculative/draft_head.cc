// A draft head such as EAGLE or MTP (model/head_input.h): from the model's hidden state of a token and the token
// that follows it, it predicts the token after that.
//
//   tokens of the sequence      t0  t1  ...  t(n-1)  t(n)        t(n) was sampled and is not computed yet
//   hidden states of the model  h0  h1  ...  h(n-1)
//   outputs of the head         (h0, t1)  ...  (h(n-1), t(n))    -> t(n+1), a draft
//
// Its keys and values are a cache group (model/cache_plan.h), so prefix caching works as for the model. It must see
// each step of the model: the hidden states of prompt tokens are used at once, those of the last few tokens are kept
// until the tokens that follow are known. After a prefix hit on a finished sequence the last ones are missing, which
// costs drafts, not correctness.
//
// Used by the step thread only.
#include <algorithm>
#include <limits>
#include <utility>

#include "engine/generation/sampler.h"
#include "engine/speculative/drafter.h"
#include "engine/speculative/speculative_config.h"

namespace turbomind {

namespace {

class DraftHead final : public Drafter {
 public:
  DraftHead(ModelRunner& runner, int max_tokens, int vocab_size)
      : Drafter(runner, max_tokens, vocab_size),
        traits_(*runner.traits().head),
        width_(traits_.width),
        sampler_(traits_.tokens.empty() ? runner.traits().vocab_size : vocab_size),
        spread_(traits_.tokens.empty() ? 0 : static_cast<size_t>(vocab_size)) {}

  // Whatever it has not run yet goes along with the token of the first draft.
  int missing_tokens(const Candidate& /*of*/) override { return 1; }
  void draft(std::span<const Candidate> all, int count) override;
  void see(std::span<const Seen> all, const float* token_hidden) override;

 private:
  // A sequence in the steps of one call of draft().
  struct Running {
    const Candidate* of;
    int position;               // of its next token
    int32_t token;              // its last draft
    std::vector<float> hidden;  // after it
  };

  int count_of(const HiddenStates& hidden) const { return static_cast<int>(hidden.states.size()) / width_; }
  // Drafts up to `count` more tokens for each.
  void chain_from(std::span<const Running> running, int count);
  void draft(Running& running, int ahead, float* logits, const float* hidden);

  const HeadTraits& traits_;
  int width_;
  Sampler sampler_;
  std::vector<float> spread_;  // [vocab_size], for heads with a vocabulary of their own
};

// Of the tokens of a step: all of few, else those whose next tokens are not known.
int tokens_to_keep(const StepSpan& span) {
  return span.count <= 1 + kMaxDrafts ? span.count : 1 + span.drafts;
}

void DraftHead::see(std::span<const Seen> all, const float* token_hidden) {
  std::vector<Due> due;
  const auto rows_of = [&](const StepSpan& span) {
    return token_hidden + static_cast<ptrdiff_t>(span.first_token) * width_;
  };
  for (const auto& [span, tokens, kept] : all) {
    const int before = std::min(span.first_position - kept.first, count_of(kept));
    if (before > 0) {
      due.push_back({tokens.data() + kept.first + 1, before, kept.first, span.tables, false, kept.states.data()});
    }
    const int now = span.count - tokens_to_keep(span);
    due.push_back(
        {tokens.data() + span.first_position + 1, now, span.first_position, span.tables, false, rows_of(span)});
  }
  run(due, width_, false, nullptr);
  for (const auto& [span, tokens, kept] : all) {
    const int count = tokens_to_keep(span);
    kept.first = span.first_position + span.count - count;
    if (kept.begin < 0) kept.begin = span.first_position;
    const float* end = rows_of(span) + static_cast<ptrdiff_t>(span.count) * width_;
    kept.states.assign(end - static_cast<ptrdiff_t>(count) * width_, end);
  }
}

void DraftHead::draft(std::span<const Candidate> all, int count) {
  std::vector<Running> running;
  std::vector<Due> due;
  for (const Candidate& of : all) {
    const HiddenStates& kept = of.drafts.hidden;
    const int last = static_cast<int>(of.tokens.size()) - 2;
    const int missing = last + 1 - kept.first;
    if (missing < 1 || missing > count_of(kept)) continue;
    due.push_back({of.tokens.data() + kept.first + 1, missing, kept.first, of.tables, true, kept.states.data()});
    running.push_back({&of, last + 1, -1, {}});
  }
  int width = width_;
  for (int i = 0; i < count && !running.empty(); ++i) {
    run(due, width, i > 0,
        [&](size_t index, float* logits, const float* hidden) { draft(running[index], i, logits, hidden); });
    if (i == 0) {
      for (const Running& one : running) {
        HiddenStates& kept = one.of->drafts.hidden;
        kept = {kept.begin, one.position, {}};
        // Where tokens before the first that was seen are missing, those after it are worth less to others.
        one.of->drafts.cached = kept.begin <= one.of->cached_tokens ? kept.first : 0;
      }
    }
    std::erase_if(running, [&](const Running& one) { return one.token < 0 || one.token >= vocab_size_; });
    due.clear();
    for (Running& one : running) {
      one.of->drafts.tokens.push_back(one.token);
      due.push_back({&one.token, 1, one.position++, one.of->tables, true, one.hidden.data()});
    }
    // Where its tokens are others than the model's, the host says which.
    if (i == 0 && traits_.tokens.empty() && can_chain()) return chain_from(running, count - 1);
    width = runner_.traits().hidden_size;
  }
}

void DraftHead::chain_from(std::span<const Running> running, int count) {
  std::vector<Link> links;
  std::vector<float> hidden;
  for (const Running& one : running) {
    links.push_back({one.of, one.position - 1, 0});
    hidden.insert(hidden.end(), one.hidden.begin(), one.hidden.end());
  }
  chain(links, std::move(hidden), count);
}

void DraftHead::draft(Running& running, int ahead, float* logits, const float* hidden) {
  if (!spread_.empty()) {
    std::ranges::fill(spread_, -std::numeric_limits<float>::infinity());
    for (size_t i = 0; i < traits_.tokens.size(); ++i) spread_[static_cast<size_t>(traits_.tokens[i])] = logits[i];
    logits = spread_.data();
  }
  running.token = sampler_.sample(logits, running.of->generation->choice(ahead));
  running.hidden.assign(hidden, hidden + runner_.traits().hidden_size);
}

}  // namespace

std::unique_ptr<Drafter> make_draft_head(ModelRunner& runner, int max_tokens, int vocab_size) {
  return std::make_unique<DraftHead>(runner, max_tokens, vocab_size);
}

}  // namespace turbomind
