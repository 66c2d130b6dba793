#include "engine/speculation/draft_model.h"

#include <algorithm>
#include <iterator>

namespace turbomind {

namespace {

// Of a sequence's tokens up to the end of a block; never 0.
class BlockHash {
 public:
  void add(int32_t token) {
    state_ = (state_ ^ static_cast<uint32_t>(token)) * 0xFF51AFD7ED558CCDu;
    state_ ^= state_ >> 32;
  }
  uint64_t value() const { return state_ | 1; }

 private:
  uint64_t state_ = 1469598103934665603u;
};

}  // namespace

DraftModel::DraftModel(ModelRunner& runner, int block_count, int block_len, int max_rows, int vocab_size)
    : runner_(runner),
      block_len_(block_len),
      max_rows_(max_rows),
      vocab_size_(vocab_size),
      sampler_(runner.vocab_size()),
      held_(static_cast<size_t>(block_count)) {}

int DraftModel::missing_rows(const Work& work) {
  return static_cast<int>(work.tokens.size()) - cached_rows(work);
}

void DraftModel::draft(std::span<const Work> all, int count) {
  std::vector<Running> running;
  for (const Work& work : all) {
    const int cached = cached_rows(work);
    if (has_blocks(work, cached)) running.push_back({&work, work.tokens, cached, cached});
  }
  for (int i = 0; i < count && !running.empty(); ++i) {
    run(running);
    std::erase_if(running, [&](const Running& one) {
      const bool is_done = one.tokens.back() >= vocab_size_ || i + 1 == count;
      if (one.tokens.back() < vocab_size_) one.work->drafts.push_back(one.tokens.back());
      if (is_done) keep(one);
      return is_done;
    });
  }
}

// Runs what is missing of each sequence, and adds the guess behind it.
void DraftModel::run(std::vector<Running>& running) {
  StepInput input;
  std::vector<Running*> guessing;
  for (size_t next = 0; next < running.size();) {
    input.clear();
    guessing.clear();
    for (; next < running.size() && static_cast<int>(input.tokens.size()) < max_rows_; ++next) {
      Running& one = running[next];
      const auto first = static_cast<int>(input.tokens.size());
      const int missing = static_cast<int>(one.tokens.size()) - one.cached;
      const int count = std::min(missing, max_rows_ - first);
      const bool is_whole = count == missing;
      input.spans.push_back({.first_row = first,
                             .count = count,
                             .first_position = one.cached,
                             .blocks = &one.work->blocks,
                             .wanted = is_whole ? SpanRows::kLast : SpanRows::kNone,
                             .prompt_len = static_cast<int>(one.work->tokens.size())});
      const auto begin = one.tokens.begin() + one.cached;
      input.tokens.insert(input.tokens.end(), begin, begin + count);
      one.cached += count;
      if (!is_whole) break;
      guessing.push_back(&one);
    }
    float* logits = runner_.forward(input).logits;
    for (Running* one : guessing) {
      const auto ahead = static_cast<int>(one->tokens.size() - one->work->tokens.size());
      const int32_t token = sampler_.sample(logits, one->work->rule(ahead));
      one->tokens.push_back(token >= 0 ? token : vocab_size_);
      logits += runner_.vocab_size();
    }
  }
}

// Remembers what the rows of a sequence are.
void DraftModel::keep(const Running& done) {
  DraftCache& cache = done.work->cache;
  cache.tokens.assign(done.tokens.begin(), done.tokens.begin() + done.cached);
  cache.blocks = done.work->blocks;
  const int known = std::min(static_cast<int>(done.work->tokens.size()), done.cached);
  const int first = done.cached_before / block_len_;
  for (int i = first; i * block_len_ < done.cached; ++i) held_[static_cast<size_t>(cache.blocks[i])] = 0;
  if (known / block_len_ <= first) return;
  BlockHash hash;
  for (int i = 0; i < known; ++i) {
    hash.add(cache.tokens[static_cast<size_t>(i)]);
    const int block = i / block_len_;
    if ((i + 1) % block_len_ == 0 && block >= first) held_[static_cast<size_t>(cache.blocks[block])] = hash.value();
  }
}

// The last token always runs: what it leads to is wanted.
int DraftModel::cached_rows(const Work& work) const {
  const auto most = std::ssize(work.tokens) - 1;
  const auto& [tokens, blocks] = work.cache;
  const auto same = std::ranges::mismatch(tokens, work.tokens).in1 - tokens.begin();
  const auto same_blocks = (std::ranges::mismatch(blocks, work.blocks).in1 - blocks.begin()) * block_len_;
  auto cached = static_cast<int>(std::min({same, same_blocks, most}));
  if (cached + block_len_ > most) return cached;
  BlockHash hash;
  for (int i = 0; i < most; ++i) {
    hash.add(work.tokens[static_cast<size_t>(i)]);
    if ((i + 1) % block_len_ != 0 || i < cached) continue;
    const int32_t block = work.blocks[static_cast<size_t>(i / block_len_)];
    if (block < 0 || held_[static_cast<size_t>(block)] != hash.value()) break;
    cached = i + 1;
  }
  return cached;
}

bool DraftModel::has_blocks(const Work& work, int cached) const {
  const auto first = work.blocks.begin() + std::min<ptrdiff_t>(cached / block_len_, std::ssize(work.blocks));
  return std::all_of(first, work.blocks.end(), [](int32_t block) { return block >= 0; });
}

}  // namespace turbomind
