#include "engine/scheduler.h"

#include <algorithm>

#include "base/error.h"

namespace turbomind {

const std::vector<Sequence*>& Scheduler::plan(StepInput& input) {
  input.clear();
  planned_.clear();
  for (auto& sequence : running_) sequence->planned = 0;
  int budget = config_.max_step_tokens;

  // Decoding sequences, oldest first. Reserving may preempt from the back of running_, never the one being served
  // unless it is the last itself.
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence* sequence = running_[i].get();
    if (sequence->pending() == 1 && sequence->generated() > 0 && reserve(*sequence, 1)) {
      sequence->planned = 1;
      --budget;
    }
  }
  admit();
  for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Sequence* sequence = running_[i].get();
    if (sequence->planned > 0) continue;
    const int chunk = std::min(sequence->pending(), budget);
    if (reserve(*sequence, chunk)) {
      sequence->planned = chunk;
      budget -= chunk;
    }
  }

  for (auto& sequence : running_) {
    if (sequence->planned == 0) continue;
    const auto first = sequence->tokens.begin() + sequence->cached;
    input.spans.push_back({static_cast<int>(input.tokens.size()), sequence->planned, sequence->cached, &sequence->blocks,
                           sequence->planned == sequence->pending()});
    input.tokens.insert(input.tokens.end(), first, first + sequence->planned);
    planned_.push_back(sequence.get());
  }
  return planned_;
}

void Scheduler::commit() {
  for (Sequence* sequence : planned_) {
    sequence->cached += sequence->planned;
    sequence->planned = 0;
  }
}

// Makes sure that `tokens` more tokens of a running sequence have a place. False when the sequence itself was preempted.
bool Scheduler::reserve(Sequence& sequence, int tokens) {
  const auto needed = static_cast<size_t>(blocks_for(sequence.cached + tokens));
  while (sequence.blocks.size() < needed) {
    const int32_t block = blocks_.allocate();
    if (block >= 0) {
      sequence.blocks.push_back(block);
      continue;
    }
    const bool is_last = running_.back().get() == &sequence;
    if (is_last && running_.size() == 1) throw internal_error("a sequence outgrew the whole cache");
    preempt_last();
    if (is_last) return false;
  }
  return true;
}

void Scheduler::preempt_last() {
  std::unique_ptr<Sequence> sequence = std::move(running_.back());
  running_.pop_back();
  blocks_.release(sequence->blocks);
  sequence->cached = 0;
  sequence->planned = 0;
  waiting_.push_front(std::move(sequence));
  ++preemptions_;
}

void Scheduler::admit() {
  int unreserved = blocks_.free_block_count();
  for (const auto& sequence : running_) {
    const int whole = blocks_for(static_cast<int>(sequence->tokens.size()));
    unreserved -= std::max(0, whole - static_cast<int>(sequence->blocks.size()));
  }
  while (!waiting_.empty() && running_count() < config_.max_batch_size) {
    const int prompt_blocks = blocks_for(static_cast<int>(waiting_.front()->tokens.size()));
    const bool is_alone = running_.empty();
    if (!is_alone && prompt_blocks + 1 > unreserved) return;
    unreserved -= prompt_blocks;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

std::unique_ptr<Sequence> Scheduler::remove(RequestId id) {
  const auto has_id = [id](const std::unique_ptr<Sequence>& sequence) { return sequence->request.id == id; };
  std::unique_ptr<Sequence> found;
  if (auto it = std::find_if(running_.begin(), running_.end(), has_id); it != running_.end()) {
    found = std::move(*it);
    running_.erase(it);
  } else if (auto queued = std::find_if(waiting_.begin(), waiting_.end(), has_id); queued != waiting_.end()) {
    found = std::move(*queued);
    waiting_.erase(queued);
  } else {
    return nullptr;
  }
  blocks_.release(found->blocks);
  return found;
}

std::vector<std::unique_ptr<Sequence>> Scheduler::remove_all() {
  std::vector<std::unique_ptr<Sequence>> all = std::move(running_);
  std::move(waiting_.begin(), waiting_.end(), std::back_inserter(all));
  running_.clear();
  waiting_.clear();
  planned_.clear();
  for (auto& sequence : all) blocks_.release(sequence->blocks);
  return all;
}

void Scheduler::check_invariants() const {
  int owned = 0;
  for (const auto& sequence : running_) {
    owned += static_cast<int>(sequence->blocks.size());
    if (sequence->cached > static_cast<int>(sequence->tokens.size())) throw internal_error("more tokens cached than there are");
    if (blocks_for(sequence->cached) > static_cast<int>(sequence->blocks.size())) throw internal_error("cached tokens without a block");
  }
  for (const auto& sequence : waiting_) {
    if (!sequence->blocks.empty()) throw internal_error("a waiting sequence holds blocks");
  }
  if (owned != blocks_.used_block_count()) throw internal_error("used blocks and owned blocks differ");
}

}  // namespace turbomind
