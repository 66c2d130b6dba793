// A smaller draft model with the tokenizer of the target model.
//
// Its keys and values are a cache group (model/cache_plan.h), so a sequence always has room for them, and prefix
// caching works as for the model.
//
// Used by the step thread only.
#include <algorithm>
#include <iterator>

#include "engine/generation/sampler.h"
#include "engine/speculative/drafter.h"

namespace turbomind {

namespace {

class DraftModel final : public Drafter {
 public:
  DraftModel(ModelRunner& runner, int max_tokens, int vocab_size)
      : Drafter(runner, max_tokens, vocab_size), sampler_(runner.traits().vocab_size) {}

  int missing_tokens(const Candidate& of) override { return static_cast<int>(of.tokens.size()) - shared_tokens(of); }
  void draft(std::span<const Candidate> all, int count) override;

 private:
  // A sequence in the steps of one call of draft().
  struct Running {
    const Candidate* of;
    std::vector<int32_t> tokens;  // with its drafts
    int cached;                   // leading tokens in the cache
  };

  static int shared_tokens(const Candidate& of);
  void run_all(std::vector<Running>& running);
  // Drafts up to `count` more tokens for each.
  void chain_from(std::vector<Running>& running, int count);
  static void keep(const Running& done);

  Sampler sampler_;
};

void DraftModel::draft(std::span<const Candidate> all, int count) {
  std::vector<Running> running;
  for (const Candidate& of : all) {
    running.push_back({&of, of.tokens, shared_tokens(of)});
  }
  for (int i = 0; i < count && !running.empty(); ++i) {
    run_all(running);
    std::erase_if(running, [&](const Running& one) {
      const bool is_done = one.tokens.back() >= vocab_size_ || i + 1 == count;
      if (one.tokens.back() < vocab_size_) one.of->drafts.tokens.push_back(one.tokens.back());
      if (is_done) keep(one);
      return is_done;
    });
    if (i == 0 && can_chain()) return chain_from(running, count - 1);
  }
}

void DraftModel::chain_from(std::vector<Running>& running, int count) {
  std::vector<Link> links;
  for (const Running& one : running) {
    links.push_back({one.of, static_cast<int>(one.tokens.size()) - 1, static_cast<int>(one.of->tokens.size())});
  }
  chain(links, {}, count);
  for (Running& one : running) {
    one.tokens.insert(one.tokens.end(), one.of->drafts.tokens.begin() + 1, one.of->drafts.tokens.end());
    one.cached = static_cast<int>(one.tokens.size()) - 1;
    keep(one);
  }
}

// Runs what is missing of each sequence, and adds the draft after it.
void DraftModel::run_all(std::vector<Running>& running) {
  std::vector<Due> due;
  for (Running& one : running) {
    const int count = static_cast<int>(one.tokens.size()) - one.cached;
    due.push_back({one.tokens.data() + one.cached, count, one.cached, one.of->tables, true, nullptr,
                   static_cast<int>(one.of->tokens.size())});
    one.cached += count;
  }
  run(due, 0, false, [&](size_t index, float* logits, const float*) {
    Running& one = running[index];
    const auto ahead = static_cast<int>(one.tokens.size() - one.of->tokens.size());
    const int32_t token = sampler_.sample(logits, one.of->generation->choice(ahead));
    one.tokens.push_back(token >= 0 ? token : vocab_size_);
  });
}

// Remembers what the tokens of a sequence are.
void DraftModel::keep(const Running& done) {
  done.of->drafts.cache.assign(done.tokens.begin(), done.tokens.begin() + done.cached);
  done.of->drafts.cached = std::min(static_cast<int>(done.of->tokens.size()), done.cached);
}

// The last token always runs: what it leads to is wanted.
int DraftModel::shared_tokens(const Candidate& of) {
  const auto limit = std::ssize(of.tokens) - 1;
  const auto same = std::ranges::mismatch(of.drafts.cache, of.tokens).in1 - of.drafts.cache.begin();
  return static_cast<int>(std::min(std::max<ptrdiff_t>(same, of.cached_tokens), limit));
}

}  // namespace

std::unique_ptr<Drafter> make_draft_model(ModelRunner& runner, int max_tokens, int vocab_size) {
  return std::make_unique<DraftModel>(runner, max_tokens, vocab_size);
}

}  // namespace turbomind
