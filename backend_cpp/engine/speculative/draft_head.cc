#include "engine/speculative/draft_head.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/speculative/speculative_config.h"

namespace turbomind {

namespace {

// Of the tokens of a step: all of few, else those whose next tokens are not known.
int rows_to_keep(const StepSpan& span) {
  return span.count <= 1 + kMaxDrafts ? span.count : 1 + span.drafts;
}

}  // namespace

DraftHead::DraftHead(ModelRunner& runner, int max_rows, int vocab_size)
    : Drafter(runner, max_rows, vocab_size),
      traits_(*runner.traits().head),
      width_(traits_.width),
      sampler_(traits_.tokens.empty() ? runner.traits().vocab_size : vocab_size),
      spread_(traits_.tokens.empty() ? 0 : static_cast<size_t>(vocab_size)) {}

// Whatever it has not run yet goes along with the token of the first draft.
int DraftHead::missing_tokens(const Work& /*work*/) {
  return 1;
}

void DraftHead::see(std::span<const Seen> all, const float* token_hidden) {
  std::vector<Due> due;
  const auto rows_of = [&](const StepSpan& span) {
    return token_hidden + static_cast<ptrdiff_t>(span.first_row) * width_;
  };
  for (const auto& [span, tokens, kept] : all) {
    const int before = std::min(span.first_position - kept.first, count_of(kept));
    if (before > 0) {
      due.push_back({tokens.data() + kept.first + 1, before, kept.first, span.tables, false, kept.states.data()});
    }
    const int now = span.count - rows_to_keep(span);
    due.push_back(
        {tokens.data() + span.first_position + 1, now, span.first_position, span.tables, false, rows_of(span)});
  }
  run(due, width_, false, nullptr);
  for (const auto& [span, tokens, kept] : all) {
    const int count = rows_to_keep(span);
    kept.first = span.first_position + span.count - count;
    if (kept.begin < 0) kept.begin = span.first_position;
    const float* end = rows_of(span) + static_cast<ptrdiff_t>(span.count) * width_;
    kept.states.assign(end - static_cast<ptrdiff_t>(count) * width_, end);
  }
}

void DraftHead::draft(std::span<const Work> all, int count) {
  std::vector<Running> running;
  std::vector<Due> due;
  for (const Work& work : all) {
    const HiddenStates& kept = work.drafts.hidden;
    const int last = static_cast<int>(work.tokens.size()) - 2;
    const int missing = last + 1 - kept.first;
    if (missing < 1 || missing > count_of(kept)) continue;
    due.push_back({work.tokens.data() + kept.first + 1, missing, kept.first, &work.tables, true, kept.states.data()});
    running.push_back({&work, last + 1, -1, {}});
  }
  int width = width_;
  for (int i = 0; i < count && !running.empty(); ++i) {
    run(due, width, i > 0,
        [&](size_t index, float* logits, const float* hidden) { draft(running[index], i, logits, hidden); });
    if (i == 0) {
      for (const Running& one : running) {
        HiddenStates& kept = one.work->drafts.hidden;
        kept = {kept.begin, one.position, {}};
        // Where tokens before the first that was seen are missing, those after it are worth less to others.
        one.work->drafts.cached = kept.begin <= one.work->cached_tokens ? kept.first : 0;
      }
    }
    std::erase_if(running, [&](const Running& one) { return one.token < 0 || one.token >= vocab_size_; });
    due.clear();
    for (Running& one : running) {
      one.work->drafts.tokens.push_back(one.token);
      due.push_back({&one.token, 1, one.position++, &one.work->tables, true, one.hidden.data()});
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
    links.push_back({one.work, one.position - 1, 0});
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
  running.token = sampler_.sample(logits, running.work->rule(ahead));
  running.hidden.assign(hidden, hidden + runner_.traits().hidden_size);
}

}  // namespace turbomind
