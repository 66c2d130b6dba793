#include "engine/scheduler.h"

#include <algorithm>

#include "base/error.h"

namespace turbomind {

namespace {

void insert_in_order(std::vector<std::shared_ptr<Sequence>>& list, std::shared_ptr<Sequence> sequence) {
  const auto place = std::upper_bound(list.begin(), list.end(), sequence,
                                      [](const auto& a, const auto& b) { return a->is_before(*b); });
  list.insert(place, std::move(sequence));
}

SpanRows wanted_rows(const Sequence& sequence) {
  const bool looks_at_prompt = sequence.wants_prompt_rows() && sequence.cached < sequence.prompt_len;
  if (looks_at_prompt) return SpanRows::kAll;
  return sequence.planned == sequence.pending() ? SpanRows::kLast : SpanRows::kNone;
}

// Whether there is anything to compute behind a token that nobody has seen.
bool goes_on(const Sequence& sequence) {
  return sequence.unseen == 0 || sequence.chosen() < sequence.params().max_new_tokens;
}

}  // namespace

void Scheduler::add(std::shared_ptr<Sequence> sequence) {
  insert_in_order(waiting_, std::move(sequence));
}

void Scheduler::plan(Step& step, bool may_preempt) {
  step.input.clear();
  step.sequences.clear();
  for (auto& sequence : running_) sequence->planned = 0;
  int budget = config_.max_step_tokens;
  const auto take = [&](Sequence& sequence, int tokens) {
    if (!reserve(sequence, tokens, may_preempt)) return false;
    sequence.planned = tokens;
    budget -= tokens;
    return true;
  };

  // Reserving may preempt from the back of running_: never a sequence before the one being served, and that one itself
  // only when it is the last.
  bool is_short = false;
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.pending() == 1 && sequence.chosen() > 0 && goes_on(sequence) && !take(sequence, 1)) is_short = true;
  }
  admit();
  for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.planned > 0 || !goes_on(sequence)) continue;
    if (!take(sequence, std::min(sequence.pending(), budget))) is_short = true;
  }
  step.was_short_of_blocks = is_short && !may_preempt;

  for (auto& sequence : running_) {
    if (sequence->planned == 0) continue;
    const auto first = sequence->tokens.begin() + sequence->cached;
    const int known = sequence->planned - sequence->unseen;
    step.input.spans.push_back({static_cast<int>(step.input.tokens.size()), sequence->planned, sequence->cached,
                                &sequence->blocks, wanted_rows(*sequence), sequence->prompt_len});
    step.input.tokens.insert(step.input.tokens.end(), first, first + known);
    if (known < sequence->planned) step.input.tokens.push_back(unseen_token(sequence->unseen_span));
    step.sequences.push_back(sequence);
  }
}

void Scheduler::commit(const Step& step) {
  for (const std::shared_ptr<Sequence>& sequence : step.sequences) {
    if (!sequence->is_open) continue;
    sequence->cached += sequence->planned;
    sequence->planned = 0;
    for (; (sequence->published + 1) * blocks_.block_len() <= sequence->cached; ++sequence->published) {
      blocks_.publish(sequence->job->scope, sequence->tokens, sequence->published, sequence->blocks);
    }
    give_back_behind_window(*sequence);
  }
}

int Scheduler::most_blocks(int tokens) const {
  const int all = blocks_for(tokens);
  if (config_.window == 0) return all;
  // A step's rows, what they look back on, and a block cut at each end.
  return std::min(all, blocks_for(config_.window + config_.max_step_tokens) + 2);
}

void Scheduler::give_back_behind_window(Sequence& sequence) {
  if (config_.window == 0) return;
  const int first_seen = sequence.cached - config_.window + 1;  // by the next row
  // What follows the last published block will be published as its successor.
  const int behind = std::min(first_seen / blocks_.block_len(), sequence.published - 1);
  const bool keeps_content = sequence.job->keeps_blocks || sequence.params().n > 1;
  for (; sequence.given_back < behind; ++sequence.given_back) {
    blocks_.give_back(sequence.blocks[static_cast<size_t>(sequence.given_back)], keeps_content);
  }
}

// Makes sure that `tokens` more tokens of a running sequence have a place. False when they have none: the sequence
// itself was preempted, if it may.
bool Scheduler::reserve(Sequence& sequence, int tokens, bool may_preempt) {
  const auto needed = static_cast<size_t>(blocks_for(sequence.cached + tokens));
  while (sequence.blocks.size() < needed) {
    const int32_t block = blocks_.allocate();
    if (block >= 0) {
      sequence.blocks.push_back(block);
      continue;
    }
    if (!may_preempt) return false;
    const bool is_last = running_.back().get() == &sequence;
    if (is_last && running_.size() == 1) throw internal_error("a sequence outgrew the whole cache");
    preempt_last();
    if (is_last) return false;
  }
  return true;
}

void Scheduler::preempt_last() {
  std::shared_ptr<Sequence> sequence = std::move(running_.back());
  running_.pop_back();
  give_up_blocks(*sequence, true);
  insert_in_order(waiting_, std::move(sequence));
  ++preemptions_;
}

void Scheduler::give_up_blocks(Sequence& sequence, bool keeps_content) {
  if (keeps_content) {
    blocks_.release(sequence.blocks);
  } else {
    blocks_.release_and_forget(sequence.blocks);
  }
  sequence.cached = 0;
  sequence.published = 0;
  sequence.given_back = 0;
  sequence.planned = 0;
}

void Scheduler::admit() {
  // Blocks that running sequences will need for the tokens they have.
  int promised = 0;
  for (const auto& sequence : running_) {
    promised += std::max(0, most_blocks(static_cast<int>(sequence->tokens.size())) - sequence->held_blocks());
  }
  while (!waiting_.empty() && running_count() < config_.max_batch_size && try_admit(*waiting_.front(), promised)) {
    std::shared_ptr<Sequence> sequence = std::move(waiting_.front());
    waiting_.erase(waiting_.begin());
    insert_in_order(running_, std::move(sequence));
  }
}

// Takes what the cache holds of the sequence, if the rest fits too.
bool Scheduler::try_admit(Sequence& sequence, int& promised) {
  const int tokens = static_cast<int>(sequence.tokens.size());
  // The last token is always computed: its logits are wanted.
  const int covered =
      sequence.job->may_match ? blocks_.match(sequence.job->scope, sequence.tokens, tokens - 1, sequence.blocks) : 0;
  sequence.cached = covered;
  sequence.published = static_cast<int>(sequence.blocks.size());
  give_back_behind_window(sequence);
  const int missing = std::max(0, most_blocks(tokens) - sequence.held_blocks());
  if (!running_.empty() && missing + 1 > blocks_.available_count() - promised) {
    give_up_blocks(sequence, true);
    return false;
  }
  promised += missing;
  matched_tokens_ += covered;
  return true;
}

std::vector<std::shared_ptr<Sequence>> Scheduler::remove_if(const std::function<bool(const Sequence&)>& is_wanted) {
  std::vector<std::shared_ptr<Sequence>> removed;
  for (auto* list : {&running_, &waiting_}) {
    for (auto& sequence : *list) {
      if (is_wanted(*sequence)) removed.push_back(std::move(sequence));
    }
    std::erase(*list, nullptr);
  }
  for (auto& sequence : removed) {
    sequence->is_open = false;
    give_up_blocks(*sequence, sequence->job->keeps_blocks);
  }
  return removed;
}

void Scheduler::check_invariants() const {
  blocks_.check_invariants();
  std::vector<int32_t> referenced;
  for (const auto& sequence : running_) {
    const auto held = sequence->blocks.begin() + sequence->given_back;
    if (std::any_of(sequence->blocks.begin(), held, [](int32_t block) { return block != kNoBlock; }))
      throw internal_error("a block behind the window is still there");
    referenced.insert(referenced.end(), held, sequence->blocks.end());
    if (sequence->cached > static_cast<int>(sequence->tokens.size()))
      throw internal_error("more tokens cached than there are");
    if (blocks_for(sequence->cached) > static_cast<int>(sequence->blocks.size()))
      throw internal_error("cached tokens without a block");
    if (sequence->published * blocks_.block_len() > sequence->cached)
      throw internal_error("a block was published before it was full");
  }
  for (const auto& sequence : waiting_) {
    if (!sequence->blocks.empty() || sequence->cached != 0) throw internal_error("a waiting sequence holds blocks");
  }
  std::sort(referenced.begin(), referenced.end());
  referenced.erase(std::unique(referenced.begin(), referenced.end()), referenced.end());
  if (static_cast<int>(referenced.size()) != blocks_.referenced_count())
    throw internal_error("referenced blocks and block tables differ");
  const auto is_ordered = [](const auto& list) {
    return std::is_sorted(list.begin(), list.end(), [](const auto& a, const auto& b) { return a->is_before(*b); });
  };
  if (!is_ordered(running_) || !is_ordered(waiting_)) throw internal_error("sequences are out of order");
}

}  // namespace turbomind
