#include "engine/schedule/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace turbomind {

namespace {

void insert_in_order(std::vector<std::shared_ptr<Sequence>>& list, std::shared_ptr<Sequence> sequence) {
  const auto place = std::upper_bound(list.begin(), list.end(), sequence,
                                      [](const auto& a, const auto& b) { return a->is_before(*b); });
  list.insert(place, std::move(sequence));
}

SpanRows wanted_rows(const Sequence& sequence) {
  const bool wants_prompt_rows = sequence.params().looks_at_prompt() && sequence.cached < sequence.prompt_len();
  if (wants_prompt_rows) return SpanRows::kAll;
  return sequence.planned - sequence.drafts.count() == sequence.pending() ? SpanRows::kLast : SpanRows::kNone;
}

// Whether there is anything to compute: not while the last row waits for a grammar; behind a token that nobody has
// seen, only if it cannot be the answer's last.
bool has_next_row(const Sequence& sequence) {
  if (sequence.answer.waits_for_grammar()) return false;
  return sequence.unseen == 0 || sequence.chosen() < sequence.params().max_new_tokens;
}

// Whether one row is left to compute, for the next token of an answer.
bool is_decoding(Sequence& sequence) {
  return sequence.pending() == 1 && sequence.chosen() > 0 && has_next_row(sequence) &&
         sequence.pictures.unwritten(sequence.cached, sequence.cached + 1).empty();
}

// Whether what a sequence gives back can be of use to others, or to itself.
bool keeps_blocks(const Sequence& sequence) {
  return sequence.group->keeps_blocks || sequence.params().n > 1;
}

Speculator::Candidate candidate(Sequence& sequence, int most) {
  // A draft model knows nothing of pictures.
  const bool has_pictures = !sequence.group->embeddings.empty();
  return {sequence.tokens,
          sequence.prompt_len(),
          sequence.group->scope,
          sequence.drafts,
          most,
          has_pictures ? nullptr : &sequence.blocks,
          &sequence.answer};
}

// Drafts that it can take before its answer ends.
int most_drafts(const Sequence& sequence) {
  return sequence.params().max_new_tokens - sequence.chosen() - 1;
}

int blocks_of(int tokens, int block_len) {
  return (tokens + block_len - 1) / block_len;
}

}  // namespace

int most_blocks(int tokens, int block_len, const SchedulerConfig& config) {
  const int all = blocks_of(tokens, block_len);
  if (config.window == 0) return all;
  // A step's rows, what they look back on, and a block cut at each end.
  return std::min(all, blocks_of(config.window + config.max_step_tokens, block_len) + 2);
}

int Scheduler::blocks_for(int tokens) const {
  return blocks_of(tokens, blocks_.block_len());
}

// Blocks that a sequence will need for the tokens it has, beside those it holds.
int Scheduler::missing_blocks(const Sequence& sequence) const {
  const int tokens = static_cast<int>(sequence.tokens.size());
  return std::max(0, most_blocks(tokens, blocks_.block_len(), config_) - sequence.held_blocks()) +
         sequence.pictures.missing_blocks();
}

void Scheduler::add(std::shared_ptr<Sequence> sequence) {
  insert_in_order(waiting_, std::move(sequence));
}

void Scheduler::plan(Step& step, bool may_preempt) {
  step.input.clear();
  step.sequences.clear();
  step.looking.clear();
  for (auto& sequence : running_) {
    sequence->planned = 0;
    sequence->drafts.tokens.clear();
  }
  int budget = config_.max_step_tokens;
  int fills = 0;
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
    if (is_decoding(sequence) && !take(sequence, 1)) is_short = true;
  }
  admit();
  for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.planned > 0 || !has_next_row(sequence)) continue;
    const int fills_before = fills;
    const int chunk = plan_pictures(sequence, chunk_of(sequence, budget), fills, may_preempt);
    budget -= (fills - fills_before + kFillsOfARow - 1) / kFillsOfARow;
    if (chunk < 0 || (chunk > 0 && budget > 0 && !take(sequence, std::min(chunk, budget)))) is_short = true;
  }
  step.was_short_of_blocks = is_short && !may_preempt;
  if (speculator_ != nullptr) add_drafts(budget);

  for (auto& sequence : running_) {
    const size_t fills_before = step.input.fills.size();
    sequence->pictures.add_fills(step.input.fills);
    if (step.input.fills.size() > fills_before) step.looking.push_back(sequence);
    if (sequence->planned == 0) continue;
    sequence->pictures.add_looks(sequence->cached, sequence->cached + sequence->planned,
                                 static_cast<int>(step.input.tokens.size()), step.input.looks);
    const auto first = sequence->tokens.begin() + sequence->cached;
    const int known = sequence->planned - sequence->unseen - sequence->drafts.count();
    step.input.spans.push_back(
        {static_cast<int>(step.input.tokens.size()), sequence->planned, sequence->cached, &sequence->blocks,
         wanted_rows(*sequence), sequence->prompt_len(), nullptr,
         ranges_within(sequence->group->embeddings, sequence->cached, sequence->cached + sequence->planned),
         position_shift(sequence->group->embeddings, sequence->cached),
         sequence->group->adapter ? sequence->group->adapter->slot : 0, sequence->drafts.count()});
    step.input.tokens.insert(step.input.tokens.end(), first, first + known);
    if (sequence->unseen > 0) step.input.tokens.push_back(unseen_token(sequence->unseen_span));
    step.input.tokens.insert(step.input.tokens.end(), sequence->drafts.tokens.begin(), sequence->drafts.tokens.end());
    step.sequences.push_back(sequence);
  }
  if (!step.is_empty()) step.input.moves = blocks_.take_moves();
}

// Drafts for the answers that go on in the step.
void Scheduler::add_drafts(int room) {
  const int rows = config_.max_step_tokens - room;
  if (!speculator_->may_pay(rows)) return;
  std::vector<Speculator::Candidate> candidates;
  std::vector<Sequence*> sequences;
  for (const auto& sequence : running_) {
    const bool goes_on = sequence->planned > 0 && sequence->unseen == 0 && sequence->answer.can_take_drafts() &&
                         wanted_rows(*sequence) == SpanRows::kLast;
    if (!goes_on) continue;
    const int wanted = std::min(most_drafts(*sequence), speculator_->most_drafts());
    if (blocks_.available_count() > running_count()) reserve(*sequence, sequence->planned + wanted, false);
    const int places = static_cast<int>(sequence->blocks.size()) * blocks_.block_len();
    candidates.push_back(candidate(*sequence, std::min(wanted, places - sequence->cached - sequence->planned)));
    sequences.push_back(sequence.get());
  }
  speculator_->draft(candidates, rows, room);
  for (Sequence* sequence : sequences) {
    std::vector<int32_t>& drafts = sequence->drafts.tokens;
    drafts.resize(sequence->answer.can_take_of(drafts));
    sequence->planned += sequence->drafts.count();
  }
}

void Scheduler::note_hidden(const Step& step, const float* row_hidden) {
  std::vector<Drafter::Seen> seen;
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    Sequence& sequence = *step.sequences[i];
    if (sequence.is_open) seen.push_back({step.input.spans[i], sequence.tokens, sequence.drafts.hidden});
  }
  speculator_->note_hidden(seen, row_hidden);
}

bool Scheduler::would_draft(const Step& step) const {
  const auto rows = static_cast<int>(step.input.tokens.size());
  return speculator_ != nullptr && std::ranges::any_of(step.sequences, [&](const auto& sequence) {
           return sequence->is_open && sequence->answer.can_take_drafts() &&
                  speculator_->would_draft(candidate(*sequence, most_drafts(*sequence)), rows);
         });
}

// How many of its tokens run next, at most `budget`; none where a picture does not fit any more.
int Scheduler::chunk_of(const Sequence& sequence, int budget) const {
  const int tokens = std::min(sequence.pending(), budget);
  if (!config_.keeps_pictures_whole) return tokens;
  const int end = sequence.cached + tokens;
  for (const EmbeddingRange& range : ranges_within(sequence.group->embeddings, end - 1, end + 1)) {
    if (range.begin < end && end < range.end()) return std::max(0, range.begin - sequence.cached);
  }
  return tokens;
}

// Plans to write the pictures that the next `tokens` of a sequence look at, as far as a step has room. Returns how many
// of these tokens can run in it; negative: the sequence was preempted, or has no place for a picture.
int Scheduler::plan_pictures(Sequence& sequence, int tokens, int& fills, bool may_preempt) {
  if (tokens == 0) return 0;
  for (PictureBlocks::Held* held : sequence.pictures.unwritten(sequence.cached, sequence.cached + tokens)) {
    const auto blocks = static_cast<size_t>(held->group->block_count());
    if (!take_blocks(sequence, held->blocks, blocks, may_preempt)) return -1;
    const int left = held->group->rows() - held->written;
    held->planned = std::min(left, config_.max_step_tokens - fills);
    fills += held->planned;
    if (held->planned < left) return std::max(0, held->group->begin() - sequence.cached);
  }
  return tokens;
}

void Scheduler::commit(const Step& step) {
  for (const std::shared_ptr<Sequence>& sequence : step.looking) sequence->pictures.commit(blocks_, sequence->prefix());
  for (const std::shared_ptr<Sequence>& sequence : step.sequences) {
    sequence->cached += sequence->planned - sequence->drafts.count();
    sequence->planned = 0;
    publish_full_blocks(*sequence);
    free_behind_window(*sequence);
    sequence->pictures.pass(blocks_, sequence->cached, keeps_blocks(*sequence));
  }
}

void Scheduler::take_drafts(Sequence& sequence, int count) {
  sequence.drafts.tokens.clear();
  sequence.cached += count;
  publish_full_blocks(sequence);
}

void Scheduler::publish_full_blocks(Sequence& sequence) {
  for (; (sequence.published + 1) * blocks_.block_len() <= sequence.cached; ++sequence.published) {
    blocks_.publish(sequence.prefix(), sequence.published, sequence.blocks);
  }
}

void Scheduler::free_behind_window(Sequence& sequence) {
  if (config_.window == 0) return;
  const int first_seen = sequence.cached - config_.window + 1;  // by the next row
  // What follows the last published block will be published as its successor.
  const int behind = std::min(first_seen / blocks_.block_len(), sequence.published - 1);
  for (; sequence.freed_blocks < behind; ++sequence.freed_blocks) {
    blocks_.give_back(sequence.blocks[static_cast<size_t>(sequence.freed_blocks)], keeps_blocks(sequence));
  }
}

// Makes sure that `tokens` more tokens of a running sequence have a place. False when they have none: the sequence
// itself was preempted, if it may.
bool Scheduler::reserve(Sequence& sequence, int tokens, bool may_preempt) {
  const auto needed = static_cast<size_t>(blocks_for(sequence.cached + tokens));
  return take_blocks(sequence, sequence.blocks, needed, may_preempt);
}

// Makes a list of a sequence's blocks as long as `count`. False as above.
bool Scheduler::take_blocks(Sequence& sequence, std::vector<int32_t>& blocks, size_t count, bool may_preempt) {
  while (blocks.size() < count) {
    const int32_t block = blocks_.allocate();
    if (block >= 0) {
      blocks.push_back(block);
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
  sequence.pictures.give_up(blocks_, keeps_content);
  sequence.cached = 0;
  sequence.published = 0;
  sequence.freed_blocks = 0;
  sequence.planned = 0;
  sequence.drafts.tokens.clear();
}

void Scheduler::admit() {
  int reserved = 0;
  for (const auto& sequence : running_) reserved += missing_blocks(*sequence);
  while (!waiting_.empty() && running_count() < config_.max_batch_size && try_admit(*waiting_.front(), reserved)) {
    std::shared_ptr<Sequence> sequence = std::move(waiting_.front());
    waiting_.erase(waiting_.begin());
    if (SequenceGroup& group = *sequence->group; !group.admitted) {
      group.admitted = Clock::now();
      group.cached_len = sequence->cached;
      ++admitted_;
      queue_seconds_ += seconds_between(group.accepted, *group.admitted);
    }
    insert_in_order(running_, std::move(sequence));
  }
}

// Takes what the cache holds of the sequence, if the rest fits too, beside the blocks reserved for running ones.
bool Scheduler::try_admit(Sequence& sequence, int& reserved) {
  const int tokens = static_cast<int>(sequence.tokens.size());
  // The last token is always computed: its logits are wanted.
  const int covered = sequence.group->may_match ? blocks_.match(sequence.prefix(), tokens - 1, sequence.blocks) : 0;
  sequence.cached = covered;
  sequence.published = static_cast<int>(sequence.blocks.size());
  free_behind_window(sequence);
  sequence.pictures.match(blocks_, sequence.prefix(), config_.picture_rows_of_block, covered);
  const int missing = missing_blocks(sequence);
  if (!running_.empty() && missing + 1 > blocks_.available_count() - reserved) {
    give_up_blocks(sequence, true);
    return false;
  }
  reserved += missing;
  sought_tokens_ += sequence.group->may_match ? tokens : 0;
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
    give_up_blocks(*sequence, sequence->group->keeps_blocks);
  }
  return removed;
}

void Scheduler::check_invariants() const {
  blocks_.check_invariants();
  std::vector<int32_t> referenced;
  for (const auto& sequence : running_) {
    const auto held = sequence->blocks.begin() + sequence->freed_blocks;
    if (std::any_of(sequence->blocks.begin(), held, [](int32_t block) { return block != kNoBlock; }))
      throw internal_error("a block behind the window is still there");
    referenced.insert(referenced.end(), held, sequence->blocks.end());
    sequence->pictures.add_blocks(referenced);
    if (sequence->cached > static_cast<int>(sequence->tokens.size()))
      throw internal_error("more tokens cached than there are");
    if (blocks_for(sequence->cached) > static_cast<int>(sequence->blocks.size()))
      throw internal_error("cached tokens without a block");
    if (sequence->published * blocks_.block_len() > sequence->cached)
      throw internal_error("a block was published before it was full");
  }
  for (const auto& sequence : waiting_) {
    if (!sequence->blocks.empty() || sequence->cached != 0 || sequence->pictures.holds_any()) {
      throw internal_error("a waiting sequence holds blocks");
    }
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
