#include "engine/engine_core.h"

#include <algorithm>
#include <random>
#include <string>

namespace turbomind {

namespace {

uint64_t draw_seed() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

SessionOwner owner_of(const LoadedAdapter* adapter) {
  return adapter != nullptr ? SessionOwner{adapter->id, adapter->name} : SessionOwner{};
}

const Error& overdue() {
  static const Error error(ErrorCode::kTimeout, "the request did not finish in the time it was given");
  return error;
}

std::unique_ptr<Drafter> make_drafter(const EngineConfig& config, ModelRunner* runner, int vocab_size) {
  if (runner == nullptr) return nullptr;
  const int rows = max_drafter_tokens(config.max_step_tokens);
  return runner->traits().head ? make_draft_head(*runner, rows, vocab_size)
                               : make_draft_model(*runner, rows, vocab_size);
}

std::unique_ptr<DiskTier> make_disk_tier(const EngineConfig& config, BlockCache& blocks, ModelRunner& runner,
                                         std::function<void()> wake) {
  if (config.disk.directory.empty()) return nullptr;
  return std::make_unique<DiskTier>(config.disk, blocks, runner, wake ? std::move(wake) : [] {});
}

// An exception that ended a request.
Error as_error(const std::exception& exception) {
  const auto* error = dynamic_cast<const Error*>(&exception);
  return error != nullptr ? *error : internal_error(exception.what());
}

}  // namespace

EngineCore::EngineCore(const EngineConfig& config, ModelRunner& runner, const TokenTable& tokens,
                       CacheEventSink* events, ModelRunner* draft_runner, std::function<void()> wake)
    : config_(config),
      runner_(runner),
      space_{tokens, runner.traits().vocab_size, runner.traits().hidden_size},
      blocks_(config.plan, {config.page_count, config.host_page_count}),
      pins_(blocks_),
      disk_(make_disk_tier(config, blocks_, runner, std::move(wake))),
      drafter_(make_drafter(config, draft_runner, runner.traits().vocab_size)),
      speculator_(config.speculation.is_on() ? std::make_optional<Speculator>(config.speculation, drafter_.get())
                                             : std::nullopt),
      scheduler_(
          {config.max_batch_size, config.max_step_tokens, runner.traits().images.needs_whole,
           runner.traits().is_pooling_model},
          blocks_, speculator_ ? &*speculator_ : nullptr,
          [&runner](const std::vector<PageMove>& moves) {
            if (!moves.empty()) runner.move_pages(moves);
          },
          disk_.get()),
      sessions_({config.session_idle_limit, config.max_sessions, config.session_len, config.embedding_bytes / 2},
                blocks_, config.enable_prefix_caching),
      steps_(scheduler_, runner, counts_),
      sampler_(runner.traits().vocab_size) {
  blocks_.snapshots().limits.interval = config.snapshot_interval;
  if (speculator_ && config.plan.group_of(MemoryKind::kState) >= 0) speculator_->expect_redone_tokens();
  if (events == nullptr) return;
  blocks_.observe(announcer_.emplace(config.block_len, *events));
  if (disk_) disk_->label_with(*announcer_);
}

// ---- requests come ----

void EngineCore::add(Submission&& submission) {
  const RequestId id = submission.request.id;
  const auto on_output = std::make_shared<const OutputCallback>(std::move(submission.request.on_output));
  try {
    if (submission.failure) throw Error(*submission.failure);
    if (!control_session(submission.request, on_output)) admit(validate(std::move(submission), on_output));
  } catch (const std::exception& exception) {
    const Error error = as_error(exception);
    ++counts_.failed;
    respond_at_once(id, on_output, FinishReason::kError, &error);
  }
}

// Answers a request that only stops or ends a session. False when it is none of these.
bool EngineCore::control_session(const Request& request, const std::shared_ptr<const OutputCallback>& on_output) {
  if (!request.session) return false;
  const SessionParams& params = *request.session;
  const bool only_ends = params.end && !params.start && request.params.max_new_tokens == 0;
  if (!params.stop && !only_ends) return false;
  if (const RequestId running = sessions_.check_control(params); running != 0) cancel(running);
  if (params.end) sessions_.erase(params.id);
  ++counts_.completed;
  respond_at_once(request.id, on_output, FinishReason::kStop, nullptr);
  return true;
}

EngineCore::Plan EngineCore::validate(Submission&& submission, std::shared_ptr<const OutputCallback> on_output) const {
  Request& request = submission.request;
  if (request.adapter && request.adapter->failure) throw Error(*request.adapter->failure);
  SessionTable::Turn turn;
  if (request.session) {
    turn = sessions_.prepare(*request.session, request.input_ids.size(), owner_of(request.adapter.get()));
  }
  Plan plan;
  plan.cache_namespace = turn.scope;
  plan.group = std::make_shared<SequenceGroup>();
  SequenceGroup& group = *plan.group;
  group.history_len = static_cast<int>(turn.history.size());
  group.embeddings = std::move(turn.embeddings);
  for (EmbeddingRange& range : request.embeddings) {
    range.begin += group.history_len;
    group.embeddings.push_back(std::move(range));
  }
  if (runner_.traits().images.has_cross_attention) {
    group.cross_images = group_images(group.embeddings, blocks_.group(cross_group()).block_len, config_.block_len);
  }
  const int prompt_len = group.history_len + static_cast<int>(request.input_ids.size());
  limit_new_tokens(request.params, prompt_len, group.cross_images);
  std::vector<int32_t>& tokens = plan.tokens;
  tokens.reserve(static_cast<size_t>(prompt_len + request.params.max_new_tokens));
  tokens.insert(tokens.end(), turn.history.begin(), turn.history.end());
  tokens.insert(tokens.end(), request.input_ids.begin(), request.input_ids.end());

  describe(request, tokens, group);
  group.on_output = std::move(on_output);
  const bool has_rows = request.params.runs_model();
  group.rules =
      std::make_shared<const GenerationRules>(std::move(request.params), space_, tokens, std::move(submission.grammar));
  if (has_rows) plan.first = std::make_shared<Sequence>(plan.group, 0, std::move(tokens));
  return plan;
}

// Throws where images leave no room for a response.
void EngineCore::limit_new_tokens(GenerationParams& params, int prompt_len,
                                  const std::vector<ImageGroup>& cross_images) const {
  int left = config_.session_len - prompt_len;
  if (!cross_images.empty()) {  // which lie in the cache as well
    int pages = config_.page_count;
    for (const ImageGroup& group : cross_images) pages -= group.block_count() * blocks_.group(cross_group()).pages;
    left = blocks_.plan().max_tokens(pages, config_.max_step_tokens, config_.session_len) - prompt_len;
    if (left < (params.generates_nothing() ? 0 : 1)) {
      throw Error(ErrorCode::kTooLong, "the images leave no room in the cache for a prompt of " +
                                           std::to_string(prompt_len) +
                                           " tokens and a response; ask about fewer, or raise cache_max_entry_count");
    }
  }
  params.max_new_tokens = params.max_new_tokens == kUnlimited ? left : std::min(params.max_new_tokens, left);
  params.min_new_tokens = std::min(params.min_new_tokens, params.max_new_tokens);
}

// Fills in what follows from the request and its tokens alone.
void EngineCore::describe(const Request& request, const std::vector<int32_t>& tokens, SequenceGroup& group) const {
  const GenerationParams& params = request.params;
  static_cast<RequestInfo&>(group) = request;
  group.arrival = next_arrival_;
  group.seed = params.random_seed ? *params.random_seed : draw_seed();
  // Blocks are shared only by prompts that the model rotates alike.
  group.scope.variant = runner_.cache_variant(static_cast<int>(tokens.size()));
  const bool is_pooling_model = runner_.traits().is_pooling_model;
  group.may_match = !params.reads_prompt_outputs() && !is_pooling_model;
  const bool may_keep = config_.enable_prefix_caching || (request.session && !request.session->end);
  group.keeps_blocks = may_keep && !is_pooling_model;
  // Where layers keep less than all tokens, a prefix is found at some places alone.
  const CachePlan& plan = blocks_.plan();
  const bool needs_anchors = plan.group_of(MemoryKind::kState) >= 0 || plan.group_of(MemoryKind::kWindow) >= 0;
  if (group.keeps_blocks && needs_anchors)
    group.branch_points = branch_points(tokens, space_.tokens, config_.block_len);
  if (request.returns_prompt || params.prompt_logprobs) {
    group.prompt = std::make_shared<const std::vector<int32_t>>(tokens);
  }
  group.accepted = Clock::now();
}

void EngineCore::admit(Plan&& plan) {
  SequenceGroup& group = *plan.group;
  const GenerationParams& params = group.rules->params;
  const SessionOwner owner = owner_of(group.adapter.get());
  const bool is_shared = config_.enable_prefix_caching;
  const uint64_t cache_namespace = is_shared ? scopes_.of(params.cache_salt, owner.adapter) : scopes_.fresh();
  if (disk_ && is_shared && (!group.adapter || !group.adapter->content.empty())) {
    disk_->record_namespace(cache_namespace, params.cache_salt, group.adapter ? group.adapter->content : "");
  }
  group.scope.cache_namespace = plan.cache_namespace.value_or(cache_namespace);
  // Callers may share a prefix that both know; a draft of another caller's text would be one that only that one knows.
  if (speculator_ && is_shared) group.draft_scope = draft_scopes_.of(params.caller, group.scope.cache_namespace);
  ++next_arrival_;
  if (group.session) sessions_.begin(*group.session, group.id, group.scope.cache_namespace, owner);
  if (!plan.first) return finish_without_output(group, std::move(plan.tokens));
  counts_.tokens_in += plan.first->prompt_len();
  if (group.deadline) next_deadline_ = std::min(next_deadline_, *group.deadline);
  scheduler_.add(std::move(plan.first));
}

// Nothing to generate: the session takes the tokens, and computes them when it continues.
void EngineCore::finish_without_output(SequenceGroup& group, std::vector<int32_t>&& tokens) {
  const int input_len = static_cast<int>(tokens.size()) - group.history_len;
  Output& output = respond_at_once(group.id, group.on_output, FinishReason::kStop, nullptr, input_len);
  output.history_token_len = group.history_len;
  output.prompt = group.prompt;
  sessions_.finish(*group.session, group.id, std::move(tokens), std::move(group.embeddings));
  ++counts_.completed;
}

// ---- steps ----

void EngineCore::step() {
  const auto on_output = [this](const std::shared_ptr<Sequence>& sequence, const SpanOutput& output) {
    collect(*sequence, output);
  };
  const EngineStats before = counts_;
  pins_.refresh();
  if (disk_) disk_->exchange(scheduler_.running_count() > 0);
  const bool has_run = steps_.run(on_output);
  is_stalled_ = !has_run && disk_ && scheduler_.waiting_count() > 0;
  if (counts_.steps != before.steps + 1 || steps_.is_in_flight()) return;
  const auto tokens = static_cast<int>(counts_.tokens_computed - before.tokens_computed);
  if (speculator_) speculator_->record_step(tokens, counts_.step_seconds - before.step_seconds);
  if (disk_) disk_->record_step(tokens, counts_.step_seconds - before.step_seconds);
}

// An error belongs to the request alone.
void EngineCore::collect(Sequence& sequence, const SpanOutput& output) {
  try {
    const int generated_before = sequence.generation.generated();
    const FinishReason finish = advance(sequence, output);
    const bool is_empty = sequence.generation.generated() == generated_before && finish == FinishReason::kNone;
    if (is_empty && sequence.pending() > 0) return;  // of its prompt, more is to come
    record_tokens(sequence, generated_before);
    if (finish == FinishReason::kNone) return emit(sequence, finish, nullptr);
    end_where([&](const Sequence& s) { return &s == &sequence; }, finish, nullptr);
  } catch (const std::exception& exception) {
    const Error error = as_error(exception);
    end_request(sequence.group->id, FinishReason::kError, &error);
  }
}

FinishReason EngineCore::advance(Sequence& sequence, const SpanOutput& output) {
  if (output.span.requested == SpanLogits::kAll) {
    sequence.generation.take_prompt_outputs(output.span.first_position, output.count, output.logits, output.hidden);
    const int end = output.span.first_position + output.span.count;
    if (static_cast<size_t>(end) < sequence.tokens.size()) return FinishReason::kNone;
  }
  if (output.span.drafts > 0) return advance_over_drafts(sequence, output);
  if (output.chosen != nullptr) return sequence.generation.advance(*output.chosen);
  return sequence.generation.advance(sampler_, output.logits_of(output.count - 1), output.hidden_of(output.count - 1));
}

// Chooses tokens from logits after logits, as long as their own token is the one that was chosen before: then its
// logits are what a step of its own would have brought.
FinishReason EngineCore::advance_over_drafts(Sequence& sequence, const SpanOutput& output) {
  const std::vector<int32_t>& drafts = sequence.drafts.tokens;
  const size_t known = sequence.tokens.size();
  size_t right = 0;
  FinishReason finish;
  do {
    const auto index = static_cast<int>(right);
    finish = sequence.generation.advance(sampler_, output.logits_of(index), output.hidden_of(index));
    const size_t taken = sequence.tokens.size() - known;
    while (right < std::min(taken, drafts.size()) && sequence.tokens[known + right] == drafts[right]) ++right;
    if (right < taken || right == static_cast<size_t>(index)) break;
  } while (finish == FinishReason::kNone);
  speculator_->record_drafts(sequence.drafts, static_cast<int>(right));
  scheduler_.take_drafts(sequence, static_cast<int>(right));
  return finish;
}

void EngineCore::record_tokens(Sequence& sequence, int generated_before) {
  if (sequence.params().generates_nothing()) return;
  counts_.tokens_out += sequence.generation.generated() - generated_before;
  const auto now = Clock::now();
  if (generated_before == 0) {
    sequence.first_token = now;
    ++counts_.first_tokens;
    counts_.first_token_seconds += seconds_between(sequence.group->accepted, now);
    if (sequence.index == 0) start_siblings(sequence);
  } else {
    counts_.later_tokens += sequence.generation.generated() - generated_before;
    counts_.later_token_seconds += seconds_between(sequence.last_token, now);
  }
  sequence.last_token = now;
}

// The other responses to the same prompt begin when the first has computed it, and find its blocks.
void EngineCore::start_siblings(const Sequence& first) {
  const std::shared_ptr<SequenceGroup>& group = first.group;
  std::vector<std::shared_ptr<Sequence>> siblings;
  for (int index = 1; index < first.params().n; ++index) {
    std::vector<int32_t> tokens;
    tokens.reserve(first.tokens.capacity());
    tokens.insert(tokens.end(), first.tokens.begin(), first.tokens.begin() + first.prompt_len());
    siblings.push_back(std::make_shared<Sequence>(group, index, std::move(tokens)));
  }
  group->open_sequences += static_cast<int>(siblings.size());
  for (std::shared_ptr<Sequence>& sibling : siblings) scheduler_.add(std::move(sibling));
}

// ---- ends ----

void EngineCore::end_request(RequestId id, FinishReason reason, const Error* error) {
  end_where([id](const Sequence& s) { return s.group->id == id; }, reason, error);
}

void EngineCore::respond_to_abandoned(const Inbox::Abandoned& request) {
  ++(request.is_overdue ? counts_.failed : counts_.cancelled);
  respond_at_once(request.id, request.on_output, request.is_overdue ? FinishReason::kError : FinishReason::kCancelled,
                  request.is_overdue ? &overdue() : nullptr, request.input_len);
}

void EngineCore::control(const CacheControl& control) {
  try {
    control.on_done(change_cache(control), nullptr);
  } catch (const Error& error) {
    control.on_done({}, &error);
  }
}

int EngineCore::change_pins(const CacheControl& control) {
  if (!config_.enable_prefix_caching) {
    throw invalid_argument("prompts can be pinned where enable_prefix_caching is on");
  }
  const auto variant = runner_.cache_variant(static_cast<int>(control.tokens.size()));
  const PrefixKey prefix{PrefixScope(scopes_.find(control.salt, control.adapter_id), variant), control.tokens};
  if (control.action == CacheControl::Action::kUnpin) {
    if (!pins_.unpin(prefix)) throw Error(ErrorCode::kNotFound, "this prompt is not pinned");
    return 0;
  }
  const int tokens = pins_.pin(prefix);
  scopes_.of(control.salt, control.adapter_id);  // used last
  return tokens;
}

CacheReport EngineCore::change_cache(const CacheControl& control) {
  CacheReport report;
  switch (control.action) {
    case CacheControl::Action::kReport:
      break;
    case CacheControl::Action::kDropMemory:
      pins_.clear();
      blocks_.contents().evict_unused();
      break;
    case CacheControl::Action::kDropFiles:
      if (disk_) disk_->drop_files();
      break;
    case CacheControl::Action::kPin:
    case CacheControl::Action::kUnpin:
      report.tokens = change_pins(control);
      break;
    case CacheControl::Action::kRest:
      release_memory();
      break;
    case CacheControl::Action::kLeave:
      finish_files();
      *control.sessions = sessions_.take();
      break;
    case CacheControl::Action::kReturn:
      sessions_.add(std::move(*control.sessions));
      break;
  }
  report.stats = stats();
  report.page_bytes = std::max(runner_.kept_page_bytes(), blocks_.plan().page_bytes);
  report.has_files = disk_ != nullptr;
  report.pinned_prompts = pins_.count();
  report.pinned_pages = pins_.page_count();
  report.max_pinned_pages = pins_.max_pages();
  return report;
}

void EngineCore::release_memory() {
  finish_files();
  pins_.clear();
  blocks_.contents().evict_all();
  if (const std::vector<PageMove> moves = blocks_.take_moves(); !moves.empty()) runner_.move_pages(moves);
  if (blocks_.pool().referenced_count() == 0) runner_.release_pages();
}

void EngineCore::end_overdue(Clock::time_point now) {
  sessions_.expire(now);
  if (now < next_deadline_) return;
  Clock::time_point next = Clock::time_point::max();
  const auto is_overdue = [&](const Sequence& sequence) {
    if (!sequence.group->deadline) return false;
    if (*sequence.group->deadline <= now) return true;
    next = std::min(next, *sequence.group->deadline);
    return false;
  };
  end_where(is_overdue, FinishReason::kError, &overdue());
  next_deadline_ = next;
}

void EngineCore::end_all(const Error* error) {
  steps_.abort();
  end_where([](const Sequence&) { return true; }, error != nullptr ? FinishReason::kError : FinishReason::kCancelled,
            error);
}

void EngineCore::end_where(const std::function<bool(const Sequence&)>& matches, FinishReason reason,
                           const Error* error) {
  for (const std::shared_ptr<Sequence>& ended : scheduler_.remove_if(matches)) {
    SequenceGroup& group = *ended->group;
    --group.open_sequences;
    emit(*ended, reason, error);
    if (speculator_ && config_.enable_prefix_caching) speculator_->record_end(ended->tokens, group.draft_scope);
    if (group.open_sequences > 0) continue;
    ++(error != nullptr ? counts_.failed : reason == FinishReason::kCancelled ? counts_.cancelled : counts_.completed);
    if (!group.session) continue;
    if (const int32_t token = ended->generation.stop_token(); token >= 0) ended->tokens.push_back(token);
    sessions_.finish(*group.session, group.id, std::move(ended->tokens), std::move(group.embeddings));
  }
}

namespace {

EngineTimes times_of(const Sequence& sequence) {
  const SequenceGroup& group = *sequence.group;
  EngineTimes times;
  times.grammar = group.grammar_seconds;
  if (!group.admitted) return times;
  times.queue = static_cast<float>(seconds_between(group.accepted, *group.admitted));
  if (!sequence.first_token) return times;
  times.prompt = static_cast<float>(seconds_between(*group.admitted, *sequence.first_token));
  times.answer = static_cast<float>(seconds_between(*sequence.first_token, Clock::now()));
  return times;
}

}  // namespace

// Sends off what can be sent of a response.
void EngineCore::emit(Sequence& sequence, FinishReason finish, const Error* error) {
  std::optional<Output> output = sequence.generation.take_output(finish);
  if (!output) return;
  const SequenceGroup& group = *sequence.group;
  output->request = group.id;
  output->is_final = finish != FinishReason::kNone && group.open_sequences == 0;
  output->input_token_len = sequence.prompt_len() - group.history_len;
  output->history_token_len = group.history_len;
  output->cached_token_len = group.cached_len;
  output->prompt = group.prompt;
  if (finish != FinishReason::kNone) {
    output->times = times_of(sequence);
    if (sequence.index == 0) output->cache_report = group.cache_report;
  }
  if (error != nullptr) {
    output->error_code = error->code();
    output->error = error->what();
  }
  outputs_.push_back({group.on_output, std::move(*output)});
}

Output& EngineCore::respond_at_once(RequestId id, std::shared_ptr<const OutputCallback> on_output, FinishReason finish,
                                    const Error* error, int input_len) {
  Output& output = outputs_.emplace_back(std::move(on_output)).output;
  output.request = id;
  output.finish = finish;
  output.is_final = true;
  output.input_token_len = input_len;
  if (error != nullptr) {
    output.error_code = error->code();
    output.error = error->what();
  }
  return output;
}

// ---- metrics and checks ----

EngineStats EngineCore::stats() const {
  EngineStats stats = counts_;
  stats.running = scheduler_.running_count();
  stats.waiting = scheduler_.waiting_count();
  stats.sessions = static_cast<int>(sessions_.size());
  const BlockPool& pool = blocks_.pool();
  stats.blocks_total = pool.page_count();
  stats.blocks_used = pool.referenced_count();
  stats.blocks_idle = blocks_.order().idle_pages();
  stats.host_blocks_total = pool.host_count();
  stats.host_blocks_used = pool.host_used_count();
  static_cast<EvictionCounts&>(stats) = blocks_.contents().counts();
  static_cast<SchedulerCounts&>(stats) = scheduler_.counts();
  if (disk_) stats.disk = disk_->stats();
  if (speculator_) stats.speculation = speculator_->stats();
  return stats;
}

void EngineCore::check_invariants() const {
  scheduler_.check_invariants();
  if (!has_work() && sessions_.busy_count() > 0) throw internal_error("a session is busy without a request");
}

}  // namespace turbomind
