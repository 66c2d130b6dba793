#include "engine/speculative/draft_model.h"

#include <algorithm>
#include <iterator>

#include "engine/speculative/draft_chain.h"

namespace turbomind {

DraftModel::DraftModel(ModelRunner& runner, int max_rows, int vocab_size)
    : runner_(runner), max_rows_(max_rows), vocab_size_(vocab_size), sampler_(runner.traits().vocab_size) {}

int DraftModel::missing_tokens(const Work& work) {
  return static_cast<int>(work.tokens.size()) - cached_rows(work);
}

void DraftModel::draft(std::span<const Work> all, int count) {
  std::vector<Running> running;
  for (const Work& work : all) {
    running.push_back({&work, work.tokens, cached_rows(work)});
  }
  for (int i = 0; i < count && !running.empty(); ++i) {
    run(running);
    std::erase_if(running, [&](const Running& one) {
      const bool is_done = one.tokens.back() >= vocab_size_ || i + 1 == count;
      if (one.tokens.back() < vocab_size_) one.work->drafts.push_back(one.tokens.back());
      if (is_done) keep(one);
      return is_done;
    });
    if (i == 0 && can_chain(runner_)) return chain(running, count - 1);
  }
}

void DraftModel::chain(std::vector<Running>& running, int count) {
  std::vector<DraftLink> links;
  for (const Running& one : running) {
    links.push_back({one.work, static_cast<int>(one.tokens.size()) - 1, static_cast<int>(one.work->tokens.size())});
  }
  chain_drafts(runner_, links, {}, count, vocab_size_);
  for (Running& one : running) {
    one.tokens.insert(one.tokens.end(), one.work->drafts.begin() + 1, one.work->drafts.end());
    one.cached = static_cast<int>(one.tokens.size()) - 1;
    keep(one);
  }
}

// Runs what is missing of each sequence, and adds the draft after it.
void DraftModel::run(std::vector<Running>& running) {
  StepInput input;
  std::vector<Running*> drafting;
  for (size_t next = 0; next < running.size();) {
    input.clear();
    drafting.clear();
    for (; next < running.size() && static_cast<int>(input.tokens.size()) < max_rows_; ++next) {
      Running& one = running[next];
      const auto first = static_cast<int>(input.tokens.size());
      const int missing = static_cast<int>(one.tokens.size()) - one.cached;
      const int count = std::min(missing, max_rows_ - first);
      const bool is_whole = count == missing;
      input.spans.push_back({.first_row = first,
                             .count = count,
                             .first_position = one.cached,
                             .tables = &one.work->tables,
                             .wanted = is_whole ? SpanRows::kLast : SpanRows::kNone,
                             .prompt_len = static_cast<int>(one.work->tokens.size())});
      const auto begin = one.tokens.begin() + one.cached;
      input.tokens.insert(input.tokens.end(), begin, begin + count);
      one.cached += count;
      if (!is_whole) break;
      drafting.push_back(&one);
    }
    float* logits = runner_.forward(input).logits;
    for (Running* one : drafting) {
      const auto ahead = static_cast<int>(one->tokens.size() - one->work->tokens.size());
      const int32_t token = sampler_.sample(logits, one->work->rule(ahead));
      one->tokens.push_back(token >= 0 ? token : vocab_size_);
      logits += runner_.traits().vocab_size;
    }
  }
}

// Remembers what the tokens of a sequence are.
void DraftModel::keep(const Running& done) {
  done.work->cache.tokens.assign(done.tokens.begin(), done.tokens.begin() + done.cached);
  done.work->cached = std::min(static_cast<int>(done.work->tokens.size()), done.cached);
}

// The last token always runs: what it leads to is wanted.
int DraftModel::cached_rows(const Work& work) {
  const auto most = std::ssize(work.tokens) - 1;
  const auto same = std::ranges::mismatch(work.cache.tokens, work.tokens).in1 - work.cache.tokens.begin();
  return static_cast<int>(std::min(std::max<ptrdiff_t>(same, work.cached_tokens), most));
}

}  // namespace turbomind
