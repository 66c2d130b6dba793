#include "engine/schedule/scheduler.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/error.h"

namespace turbomind {

namespace {

constexpr auto is_served_before = [](const auto& one, const auto& other) { return one->is_before(*other); };

void insert_in_order(std::vector<std::shared_ptr<Sequence>>& list, std::shared_ptr<Sequence> sequence) {
  list.insert(std::ranges::upper_bound(list, sequence, is_served_before), std::move(sequence));
}

SpanLogits requested_logits(const Sequence& sequence) {
  const bool reads_outputs = sequence.params().reads_prompt_outputs() || sequence.params().output_token_embeddings;
  const bool needs_prompt = reads_outputs && sequence.cached() < sequence.prompt_len();
  if (needs_prompt) return SpanLogits::kAll;
  return sequence.planned - sequence.drafts.count() == sequence.pending() ? SpanLogits::kLast : SpanLogits::kNone;
}

// Whether there is anything to compute: after a token that nobody has seen, only if it cannot be the response's last.
bool has_next_token(const Sequence& sequence) {
  return sequence.in_flight == 0 || sequence.chosen() < sequence.params().max_new_tokens;
}

// Whether one token is left to compute, for the next token of a response.
bool is_decoding(Sequence& sequence) {
  return sequence.pending() == 1 && sequence.chosen() > 0 && has_next_token(sequence) &&
         sequence.images.unwritten(sequence.cached(), sequence.cached() + 1).empty();
}

// Whether what a sequence gives back can be of use to others, or to itself.
Keep keep_of(const Sequence& sequence) {
  return sequence.group->keeps_blocks || sequence.params().n > 1 ? Keep::kContent : Keep::kNothing;
}

Speculator::Candidate candidate(const BlockCache& cache, Sequence& sequence, int max_drafts) {
  // A draft model knows nothing of images.
  const bool has_images = !sequence.group->embeddings.empty();
  return {sequence.tokens,
          sequence.prompt_len(),
          sequence.group->draft_scope,
          sequence.drafts,
          max_drafts,
          has_images ? nullptr : &sequence.memory.tables(),
          sequence.memory.published_draft_tokens(cache),
          &sequence.generation};
}

// How many leading tokens of two sequences have the same keys, values and states.
int shared_tokens(const Sequence& one, const Sequence& other) {
  if (!(one.group->scope == other.group->scope)) return 0;
  auto shared = static_cast<int>(std::ranges::mismatch(one.tokens, other.tokens).in1 - one.tokens.begin());
  const auto is_same = [](const EmbeddingRange& a, const EmbeddingRange& b) {
    return a.begin == b.begin && a.count == b.count && a.digest == b.digest && a.grid == b.grid;
  };
  const auto [mine, others] = std::ranges::mismatch(one.group->embeddings, other.group->embeddings, is_same);
  if (mine != one.group->embeddings.end()) shared = std::min(shared, mine->begin);
  if (others != other.group->embeddings.end()) shared = std::min(shared, others->begin);
  return shared;
}

// Where the hit of a sequence could end, before it is matched, and which of the blocks are in the host's memory.
PrefixReport explain_hit(BlockCache& cache, const Sequence& sequence, int limit, std::vector<bool>& in_host) {
  if (!sequence.group->may_match) return {.end = HitEnd::kUnused};
  if (!sequence.group->keeps_blocks) return {.end = HitEnd::kOff};
  PrefixReport report;
  const PrefixParting parting = cache.tree().parting(sequence.prefix(), limit);
  for (const NodeId node : parting.path) in_host.push_back(cache.contents().is_in_host(node));
  report.token = parting.tokens;
  if (parting.deleted) {
    report.end = HitEnd::kEvicted;
    report.seconds = static_cast<int>(seconds_between(*parting.deleted, Clock::now()));
  } else if (parting.tokens < limit) {
    report.end = parting.goes_on ? HitEnd::kDiffers : HitEnd::kEnds;
  }
  return report;
}

// Completes the report of a sequence that was matched.
PrefixReport count_hit(PrefixReport report, const BlockCache& cache, const Sequence& sequence,
                       const std::vector<bool>& in_host) {
  const int len = cache.block_len();
  const int found = sequence.cached();
  for (int begin = 0; begin < found; begin += len) {
    const int end = std::min(begin + len, found);
    const int read = std::max(0, std::min(end, sequence.disk.read_end) - std::max(begin, sequence.disk.read_begin));
    const auto index = static_cast<size_t>(begin / len);
    report.disk += read;
    (index < in_host.size() && in_host[index] ? report.host : report.device) += end - begin - read;
  }
  if (cache.plan().group_of(MemoryKind::kState) >= 0) report.snapshot = found;
  if (found < static_cast<int>(in_host.size()) * len) {
    report.token = std::max(report.token, static_cast<int>(in_host.size()) * len);
    report.end = HitEnd::kNotKept;
  }
  return report;
}

// Drafts that it can take before its response ends.
int draft_limit(const Sequence& sequence) {
  return sequence.params().max_new_tokens - sequence.chosen() - 1;
}

}  // namespace

// Pages that a sequence will need for the tokens it has in addition to those it holds.
int Scheduler::missing_pages(const Sequence& sequence) const {
  return sequence.memory.missing_pages(blocks_, static_cast<int>(sequence.tokens.size())) +
         sequence.images.missing_pages(blocks_);
}

void Scheduler::add(std::shared_ptr<Sequence> sequence) {
  insert_in_order(waiting_, std::move(sequence));
}

void Scheduler::plan(Step& step, bool may_preempt) {
  step.input.clear();
  step.sequences.clear();
  step.encoding.clear();
  for (auto& sequence : running_) {
    sequence->planned = 0;
    sequence->drafts.tokens.clear();
  }
  if (config_.is_pooling_model) {
    plan_texts();
    return add_spans(step);
  }
  Budget budget{config_.max_step_tokens, may_preempt};
  plan_decoding(budget);
  admit();
  plan_prompts(budget);
  step.was_short_of_blocks = budget.is_short && !may_preempt;
  if (speculator_ != nullptr) add_drafts(budget.tokens);
  add_spans(step);
}

// Plans tokens of a sequence, if there are blocks for them. Reserving these may preempt from the back of running_:
// never a sequence before the one being served, and that one itself only when it is the last.
void Scheduler::plan_tokens(Sequence& sequence, int tokens, Budget& budget) {
  if (!reserve(sequence, tokens, budget.may_preempt)) {
    budget.is_short = true;
    return;
  }
  sequence.planned = tokens;
  budget.tokens -= tokens;
}

// The next token of each response; then tokens that run again.
void Scheduler::plan_decoding(Budget& budget) {
  for (size_t i = 0; i < running_.size(); ++i) {
    if (is_decoding(*running_[i])) plan_tokens(*running_[i], 1, budget);
  }
  for (size_t i = 0; i < running_.size() && budget.tokens > 0; ++i) {
    Sequence& sequence = *running_[i];
    if (is_redoing(sequence)) plan_tokens(sequence, chunk_of(sequence, budget.tokens), budget);
  }
}

void Scheduler::plan_prompts(Budget& budget) {
  int kv_writes = 0;
  for (size_t i = 0; i < running_.size() && budget.tokens > 0; ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.planned > 0 || !has_next_token(sequence)) continue;
    const int writes_before = kv_writes;
    const int chunk = plan_images(sequence, chunk_of(sequence, budget.tokens), kv_writes, budget.may_preempt);
    budget.tokens -= (kv_writes - writes_before + kKvWritesPerToken - 1) / kKvWritesPerToken;
    if (chunk < 0) budget.is_short = true;
    if (chunk > 0 && budget.tokens > 0) plan_tokens(sequence, std::min(chunk, budget.tokens), budget);
  }
}

// Texts of an encoder for a step: whole ones.
void Scheduler::plan_texts() {
  admit();
  if (running_.empty()) return;
  std::vector<Sequence*> texts;
  for (const auto& sequence : running_) texts.push_back(sequence.get());
  const auto sort_key = [](const Sequence* text) { return std::pair(text->group->priority, text->tokens.size()); };
  std::ranges::stable_sort(texts.begin() + 1, texts.end(), {}, sort_key);
  int budget = std::max(config_.max_step_tokens, texts.front()->pending());
  int count = 0;
  for (Sequence* text : texts) {
    if (count == config_.max_batch_size || text->pending() > budget) break;
    text->planned = text->pending();
    budget -= text->planned;
    ++count;
  }
}

// The spans of the sequences that were planned.
void Scheduler::add_spans(Step& step) {
  for (auto& sequence : running_) {
    const size_t writes_before = step.input.kv_writes.size();
    sequence->images.add_kv_writes(step.input.kv_writes);
    if (step.input.kv_writes.size() > writes_before) step.encoding.push_back(sequence);
    if (sequence->planned == 0) continue;
    sequence->images.add_cross_spans(sequence->cached(), sequence->cached() + sequence->planned,
                                     static_cast<int>(step.input.tokens.size()), step.input.cross_spans);
    const auto first = sequence->tokens.begin() + sequence->cached();
    const int known = sequence->planned - sequence->in_flight - sequence->drafts.count();
    step.input.spans.push_back({static_cast<int>(step.input.tokens.size()), sequence->planned, sequence->cached(),
                                &sequence->memory.tables(), requested_logits(*sequence), sequence->prompt_len(),
                                nullptr, sequence->group->embeddings,
                                sequence->group->adapter ? sequence->group->adapter->slot : 0, sequence->drafts.count(),
                                sequence->params().second_text_begin.value_or(0)});
    step.input.tokens.insert(step.input.tokens.end(), first, first + known);
    if (sequence->in_flight > 0) step.input.tokens.push_back(in_flight_token(sequence->in_flight_span));
    step.input.tokens.insert(step.input.tokens.end(), sequence->drafts.tokens.begin(), sequence->drafts.tokens.end());
    step.sequences.push_back(sequence);
  }
  if (!step.is_empty()) step.moves = blocks_.pool().take_moves();
}

// Of the running sequence, in the step that is planned.
bool Scheduler::may_draft(const Sequence& sequence, bool has_state) const {
  const bool continues = sequence.planned > 0 && sequence.in_flight == 0 && sequence.generation.can_take_drafts() &&
                         requested_logits(sequence) == SpanLogits::kLast;
  // The last border of a prompt may lie within the step; tokens that run again are not to become ever more.
  return continues && (!has_state || (sequence.cached() >= sequence.prompt_len() && sequence.planned <= kMaxRedone));
}

// Drafts for the responses that continue in the step.
void Scheduler::add_drafts(int free_tokens) {
  const int step_tokens = config_.max_step_tokens - free_tokens;
  const bool has_state = blocks_.plan().group_of(MemoryKind::kState) >= 0;
  if (!speculator_->may_pay(step_tokens)) return;
  std::vector<Speculator::Candidate> candidates;
  std::vector<Sequence*> sequences;
  for (const auto& sequence : running_) {
    if (!may_draft(*sequence, has_state)) continue;
    const int end = sequence->cached() + sequence->planned;
    const int max_drafts = std::min(draft_limit(*sequence), speculator_->max_drafts());
    const int requested = sequence->memory.next_stop(blocks_, end + max_drafts) - end;
    if (requested <= 0) continue;
    const int spare = running_count() * blocks_.plan().pages_of_block();
    if (blocks_.pool().available_count() > spare) reserve(*sequence, sequence->planned + requested, false);
    candidates.push_back(candidate(blocks_, *sequence, std::min(requested, sequence->memory.capacity(blocks_) - end)));
    sequences.push_back(sequence.get());
  }
  // A drafter writes into pages of the arena, as the step will.
  const bool has_memory = blocks_.plan().group_of(MemoryKind::kDraft) >= 0;
  if (has_memory && !candidates.empty()) move_pages_(blocks_.pool().take_moves());
  speculator_->draft(candidates, step_tokens, free_tokens);
  for (Sequence* sequence : sequences) {
    sequence->memory.publish_drafts(blocks_, sequence->prefix(), sequence->drafts.cached);
    take_sequence_drafts(*sequence);
  }
}

// Of a sequence's drafts, those that its answer can take become tokens of the step.
void Scheduler::take_sequence_drafts(Sequence& sequence) {
  std::vector<int32_t>& drafts = sequence.drafts.tokens;
  const int state = blocks_.plan().group_of(MemoryKind::kState);
  if (state >= 0 && !drafts.empty()) {
    const int spare = running_count() * blocks_.plan().pages_of_block() + blocks_.group(state).pages;
    if (blocks_.pool().available_count() <= spare || !sequence.memory.back_up(blocks_)) drafts.clear();
  }
  sequence.planned += sequence.drafts.count();
}

// Whether tokens of its answer run again, whose drafts were taken back.
bool Scheduler::is_redoing(const Sequence& sequence) const {
  return speculator_ != nullptr && sequence.planned == 0 && sequence.chosen() > 0 && sequence.pending() > 1 &&
         sequence.pending() <= 2 + speculator_->max_drafts() && has_next_token(sequence) &&
         sequence.cached() >= sequence.prompt_len() && blocks_.plan().group_of(MemoryKind::kState) >= 0;
}

void Scheduler::record_hidden(const Step& step, const float* token_hidden) {
  std::vector<Drafter::Seen> seen;
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    Sequence& sequence = *step.sequences[i];
    if (sequence.is_open) seen.push_back({step.input.spans[i], sequence.tokens, sequence.drafts.hidden});
  }
  speculator_->record_hidden(seen, token_hidden);
}

bool Scheduler::would_draft(const Step& step) const {
  const auto step_tokens = static_cast<int>(step.input.tokens.size());
  return speculator_ != nullptr && std::ranges::any_of(step.sequences, [&](const auto& sequence) {
           return sequence->is_open && sequence->generation.can_take_drafts() &&
                  speculator_->would_draft(candidate(blocks_, *sequence, draft_limit(*sequence)), step_tokens);
         });
}

// How many of its tokens run next, at most `budget`; none where an image does not fit any more.
int Scheduler::chunk_of(const Sequence& sequence, int budget) const {
  const auto cut_image = [&](int end) -> const EmbeddingRange* {
    if (!config_.keeps_images_whole) return nullptr;
    for (const EmbeddingRange& range : ranges_within(sequence.group->embeddings, end - 1, end + 1)) {
      if (range.begin < end && end < range.end()) return &range;
    }
    return nullptr;
  };
  const int begin = sequence.cached();
  int end = begin + std::min(sequence.pending(), budget);
  if (const EmbeddingRange* image = cut_image(end)) end = std::max(begin, image->begin);
  const int stop = sequence.memory.next_stop(blocks_, end);
  return (cut_image(stop) == nullptr ? stop : end) - begin;
}

// Plans to write the images that the next `tokens` of a sequence look at, as far as a step has free tokens.
// Returns how many of these tokens can run in it; negative: the sequence was preempted, or has no place for an image.
int Scheduler::plan_images(Sequence& sequence, int tokens, int& kv_writes, bool may_preempt) {
  if (tokens == 0) return 0;
  for (ImageBlocks::Entry* entry : sequence.images.unwritten(sequence.cached(), sequence.cached() + tokens)) {
    while (!ImageBlocks::grow(blocks_, *entry)) {
      if (!may_preempt || !make_room(sequence)) return -1;
    }
    const int left = entry->group->rows() - entry->written;
    entry->planned = std::min(left, config_.max_step_tokens - kv_writes);
    kv_writes += entry->planned;
    if (entry->planned < left) return std::max(0, entry->group->begin() - sequence.cached());
  }
  return tokens;
}

void Scheduler::commit(const Step& step) {
  for (const std::shared_ptr<Sequence>& sequence : step.encoding) sequence->images.commit(blocks_, sequence->prefix());
  for (const std::shared_ptr<Sequence>& sequence : step.sequences) {
    if (!sequence->is_open) continue;        // it ended while the step was under way, and holds nothing
    if (config_.is_pooling_model) continue;  // nothing of it is kept, and it ends with the step
    const Keep keep = keep_of(*sequence);
    sequence->memory.advance(blocks_, sequence->prefix(), sequence->planned - sequence->drafts.count(), keep);
    sequence->planned = 0;
    sequence->images.pass(blocks_, sequence->cached(), keep);
  }
}

void Scheduler::take_drafts(Sequence& sequence, int count) {
  const bool were_all_right = count == sequence.drafts.count();
  sequence.drafts.tokens.clear();
  if (sequence.memory.has_backup() && !were_all_right) {
    sequence.memory.roll_back(blocks_);
  } else {
    const int before = sequence.memory.drop_backup(blocks_);
    sequence.memory.advance(blocks_, sequence.prefix(), before + count, keep_of(sequence));
  }
}

// Makes sure that `tokens` more tokens of a running sequence have a place. False when they have none: the sequence
// itself was preempted, if it may.
bool Scheduler::reserve(Sequence& sequence, int tokens, bool may_preempt) {
  while (!sequence.memory.grow(blocks_, sequence.cached() + tokens)) {
    if (!may_preempt || !make_room(sequence)) return false;
  }
  return true;
}

// Preempts the sequence served last. False where that is `sequence` itself.
bool Scheduler::make_room(const Sequence& sequence) {
  const bool is_last = running_.back().get() == &sequence;
  if (is_last && running_.size() == 1) throw internal_error("a sequence outgrew the whole cache");
  std::shared_ptr<Sequence> last = std::move(running_.back());
  running_.pop_back();
  release_memory(*last, Keep::kContent);
  last->disk = {};
  insert_in_order(waiting_, std::move(last));
  ++counts_.preemptions;
  return !is_last;
}

void Scheduler::release_memory(Sequence& sequence, Keep keep) {
  sequence.memory.release(blocks_, sequence.prefix(), keep);
  sequence.images.release(blocks_, keep);
  sequence.planned = 0;
  sequence.drafts.tokens.clear();
  sequence.drafts.cache = {};
  sequence.drafts.hidden = {};
}

void Scheduler::admit() {
  // Tokens of a step take this in addition while they run, whoever's they are.
  int reserved = 0;
  for (const CacheGroup& group : blocks_.plan().groups) {
    if (group.kind == MemoryKind::kWindow) reserved += group.blocks_for(config_.max_step_tokens) * group.pages;
  }
  for (const auto& sequence : running_) reserved += missing_pages(*sequence);
  int waits = 0;
  const int max_running = config_.is_pooling_model ? std::numeric_limits<int>::max() : config_.max_batch_size;
  while (waits < std::min<int>(waiting_count(), kMaxPrefixWaits) && running_count() < max_running) {
    const auto next = waiting_.begin() + waits;
    if (waits_for_prefix(**next) || waits_for_disk(**next, reserved)) {
      ++waits;
      continue;
    }
    if (!try_admit(**next, reserved)) break;
    std::shared_ptr<Sequence> sequence = std::move(*next);
    waiting_.erase(next);
    if (SequenceGroup& group = *sequence->group; !group.admitted) {
      group.admitted = Clock::now();
      group.cached_len = sequence->cached();
      ++counts_.admitted;
      counts_.queue_seconds += seconds_between(group.accepted, *group.admitted);
    }
    insert_in_order(running_, std::move(sequence));
  }
}

// Whether a running sequence that is served before it computes tokens that it begins with too, and can find. That one
// has an anchor then at the end of what both share.
bool Scheduler::waits_for_prefix(const Sequence& sequence) {
  if (!sequence.group->may_match) return false;
  // The last token is always computed.
  const int max_shared = static_cast<int>(sequence.tokens.size()) - 1;
  for (const auto& running : running_) {
    if (!running->is_before(sequence) || !has_next_token(*running)) continue;
    const int next_border = (running->cached() / blocks_.block_len() + 1) * blocks_.block_len();
    if (next_border > static_cast<int>(running->tokens.size()) && running->pending() <= 1) continue;
    const int shared = std::min(shared_tokens(*running, sequence), max_shared);
    int target = shared / blocks_.block_len() * blocks_.block_len();
    int awaited = 0;
    if (blocks_.plan().group_of(MemoryKind::kState) >= 0) {
      for (const int point : sequence.group->branch_points) target = point <= shared ? std::max(target, point) : target;
    } else if (shared - target >= blocks_.snapshots().limits.min_copied &&
               target + blocks_.block_len() <= static_cast<int>(running->tokens.size())) {
      awaited = target + blocks_.block_len();  // the block whose first tokens it shares can be copied once it is full
    }
    if (std::max(target, awaited) <= running->cached()) continue;
    running->memory.add_anchor(target);
    return true;
  }
  return false;
}

// Whether a waiting sequence that needs this many more pages can begin, alongside those reserved for running ones.
bool Scheduler::has_room(int missing, int reserved) const {
  return running_.empty() || missing + blocks_.plan().pages_of_block() <= blocks_.pool().available_count() - reserved;
}

// Whether what files have of it is being read. It could begin otherwise: there is space for all its tokens.
bool Scheduler::waits_for_disk(Sequence& sequence, int& reserved) {
  const bool may_read = disk_ != nullptr && sequence.group->may_match && sequence.group->keeps_blocks;
  if (!may_read || sequence.disk.is_finished) return false;
  const int missing = missing_pages(sequence);
  if (!has_room(missing, reserved)) return false;
  const int tokens = static_cast<int>(sequence.tokens.size());
  SequenceMemory anchored;
  anchored.begin(blocks_, tokens, sequence.group->branch_points);
  if (!disk_->waits_for_load(sequence.prefix(), tokens - 1, anchored.anchors(), sequence.disk)) return false;
  reserved += missing;
  return true;
}

// Takes what the cache holds of the sequence, if the rest fits too, alongside the blocks reserved for running ones.
bool Scheduler::try_admit(Sequence& sequence, int& reserved) {
  const int tokens = static_cast<int>(sequence.tokens.size());
  std::optional<PrefixReport> report;
  std::vector<bool> in_host;
  if (sequence.params().include_cache_report && !sequence.group->admitted) {
    report = explain_hit(blocks_, sequence, tokens - 1, in_host);
  }
  // The last token is always computed: its logits are wanted.
  if (sequence.group->may_match) {
    sequence.memory.match(blocks_, sequence.prefix(), tokens - 1, tokens, sequence.group->branch_points);
  } else {
    sequence.memory.begin(blocks_, tokens, sequence.group->branch_points);
  }
  const int covered = sequence.cached();
  sequence.images.match(blocks_, sequence.prefix(), covered);
  const int missing = missing_pages(sequence);
  if (!has_room(missing, reserved)) {
    release_memory(sequence, Keep::kContent);
    return false;
  }
  reserved += missing;
  if (report) sequence.group->cache_report = count_hit(*report, blocks_, sequence, in_host);
  counts_.prefix_cache_queries += sequence.group->may_match ? tokens : 0;
  counts_.prefix_cache_hits += covered;
  return true;
}

std::vector<std::shared_ptr<Sequence>> Scheduler::remove_if(const std::function<bool(const Sequence&)>& matches) {
  std::vector<std::shared_ptr<Sequence>> removed;
  for (auto* list : {&running_, &waiting_}) {
    for (auto& sequence : *list) {
      if (matches(*sequence)) removed.push_back(std::move(sequence));
    }
    std::erase(*list, nullptr);
  }
  for (auto& sequence : removed) {
    sequence->is_open = false;
    release_memory(*sequence, sequence->group->keeps_blocks ? Keep::kContent : Keep::kNothing);
  }
  return removed;
}

void Scheduler::check_invariants() const {
  blocks_.check_invariants();
  std::vector<int32_t> referenced;
  for (const auto& sequence : running_) {
    sequence->memory.check_invariants(blocks_);
    sequence->memory.add_blocks(referenced);
    sequence->images.add_blocks(referenced);
    if (sequence->cached() > static_cast<int>(sequence->tokens.size()))
      throw internal_error("more tokens cached than there are");
  }
  for (const auto& sequence : waiting_) {
    if (!sequence->memory.is_empty() || sequence->images.has_blocks()) {
      throw internal_error("a waiting sequence holds memory");
    }
  }
  std::sort(referenced.begin(), referenced.end());
  referenced.erase(std::unique(referenced.begin(), referenced.end()), referenced.end());
  int pages = 0;
  for (const int32_t block : referenced) pages += blocks_.pool().pages_of(block);
  if (pages != blocks_.pool().referenced_count())
    throw internal_error("referenced pages and those of sequences differ");
  for (const auto* list : {&running_, &waiting_}) {
    if (!std::ranges::is_sorted(*list, is_served_before)) throw internal_error("sequences are out of order");
  }
}

}  // namespace turbomind
