#include "engine/speculative/draft_model.h"

#include <algorithm>
#include <iterator>

namespace turbomind {

DraftModel::DraftModel(ModelRunner& runner, int max_rows, int vocab_size)
    : Drafter(runner, max_rows, vocab_size), sampler_(runner.traits().vocab_size) {}

int DraftModel::missing_tokens(const Work& work) {
  return static_cast<int>(work.tokens.size()) - cached_rows(work);
}

void DraftModel::draft(std::span<const Work> all, int count) {
  std::vector<Running> running;
  for (const Work& work : all) {
    running.push_back({&work, work.tokens, cached_rows(work)});
  }
  for (int i = 0; i < count && !running.empty(); ++i) {
    run_all(running);
    std::erase_if(running, [&](const Running& one) {
      const bool is_done = one.tokens.back() >= vocab_size_ || i + 1 == count;
      if (one.tokens.back() < vocab_size_) one.work->drafts.tokens.push_back(one.tokens.back());
      if (is_done) keep(one);
      return is_done;
    });
    if (i == 0 && can_chain()) return chain_from(running, count - 1);
  }
}

void DraftModel::chain_from(std::vector<Running>& running, int count) {
  std::vector<Link> links;
  for (const Running& one : running) {
    links.push_back({one.work, static_cast<int>(one.tokens.size()) - 1, static_cast<int>(one.work->tokens.size())});
  }
  chain(links, {}, count);
  for (Running& one : running) {
    one.tokens.insert(one.tokens.end(), one.work->drafts.tokens.begin() + 1, one.work->drafts.tokens.end());
    one.cached = static_cast<int>(one.tokens.size()) - 1;
    keep(one);
  }
}

// Runs what is missing of each sequence, and adds the draft after it.
void DraftModel::run_all(std::vector<Running>& running) {
  std::vector<Due> due;
  for (Running& one : running) {
    const int count = static_cast<int>(one.tokens.size()) - one.cached;
    due.push_back({one.tokens.data() + one.cached, count, one.cached, &one.work->tables, true, nullptr,
                   static_cast<int>(one.work->tokens.size())});
    one.cached += count;
  }
  run(due, 0, false, [&](size_t index, float* logits, const float*) {
    Running& one = running[index];
    const auto ahead = static_cast<int>(one.tokens.size() - one.work->tokens.size());
    const int32_t token = sampler_.sample(logits, one.work->rule(ahead));
    one.tokens.push_back(token >= 0 ? token : vocab_size_);
  });
}

// Remembers what the tokens of a sequence are.
void DraftModel::keep(const Running& done) {
  done.work->drafts.cache.assign(done.tokens.begin(), done.tokens.begin() + done.cached);
  done.work->drafts.cached = std::min(static_cast<int>(done.work->tokens.size()), done.cached);
}

// The last token always runs: what it leads to is wanted.
int DraftModel::cached_rows(const Work& work) {
  const auto most = std::ssize(work.tokens) - 1;
  const auto same = std::ranges::mismatch(work.drafts.cache, work.tokens).in1 - work.drafts.cache.begin();
  return static_cast<int>(std::min(std::max<ptrdiff_t>(same, work.cached_tokens), most));
}

}  // namespace turbomind
