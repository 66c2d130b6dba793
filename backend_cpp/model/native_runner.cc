#include "model/native_runner.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/cpu_share.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "device/cpu_operators.h"
#include "model/step/image_tokens.h"
#include "model/text_encoder.h"

namespace turbomind {

namespace {

// Replaces the memory of each buffer of the weights.
class Mover {
 public:
  explicit Mover(
      std::function<void(AlignedBuffer&)> move_buffer,
      std::function<void(LinearWeight&)> lay_out = [](LinearWeight&) {})
      : move_buffer_(std::move(move_buffer)), lay_out_(std::move(lay_out)) {}

  template <class Part>
  void move(Part& part) {
    part.visit_members([this](auto&... members) { all(members...); });
  }

 private:
  template <class... Parts>
  void all(Parts&... parts) {
    (move(parts), ...);
  }
  template <class T>
  void move(std::optional<T>& part) {
    if (part) move(*part);
  }
  template <class T>
  void move(std::vector<T>& parts) {
    for (T& part : parts) move(part);
  }
  // Fields that the device does not read.
  void move(float&) {}
  void move(XieluFactors&) {}
  void move(Slice::Range&) {}
  void move(AdaptedLayer&) {}
  void move(StoredTable&) {}

  void move(ExpertWeights& weights) {
    auto& [router, router_norm, correction, scales, token_experts, arena, experts, shared, shared_gate, latent_in,
           latent_out] = weights;
    all(router, router_norm, correction, scales, shared_gate, latent_in, latent_out);
    std::vector<LinearWeight*> views;
    for (std::vector<ExpertWeight>* list : {&experts, &shared}) {
      for (ExpertWeight& expert : *list) views.insert(views.end(), {&expert.gate_up, &expert.down});
    }
    arena.move([this](AlignedBuffer& chunk) { move(chunk); }, views);
  }

  void move(NormStorage& norm) {
    auto& [weight, bias, view] = norm;
    all(weight, bias);
    view.weight = weight.as<float>();
    view.bias = bias.as<float>();
  }

  void move(LinearStorage& linear) {
    all(linear.data, linear.scales, linear.zeros, linear.mins, linear.input_order, linear.block_scales,
        linear.output_scales, linear.bias);
    linear.set_pointers();
    lay_out_(linear.view);
    move(linear.for_images);
  }

  void move(AlignedBuffer& buffer) { move_buffer_(buffer); }

  std::function<void(AlignedBuffer&)> move_buffer_;
  std::function<void(LinearWeight&)> lay_out_;
};

size_t bytes_of(Weights& weights) {
  size_t total = 0;
  Mover([&](const AlignedBuffer& buffer) { total += buffer.size(); }).move(weights);
  return total;
}

// Views point to the device's memory afterwards; the host's is given back piece by piece. Does nothing where the device
// shares the host's memory.
void move_weights(Operators& ops, Weights& weights) {
  if (ops.shares_host_memory()) return;
  ops.expect(bytes_of(weights), MemoryUse::kWeights);
  Mover(
      [&](AlignedBuffer& buffer) {
        if (buffer.size() == 0) return;
        AlignedBuffer there = ops.allocate(buffer.size(), MemoryUse::kWeights);
        ops.upload(buffer.as<void>(), buffer.size(), there.as<void>());
        buffer = std::move(there);
      },
      [&](LinearWeight& weight) { ops.lay_out(weight); })
      .move(weights);
}

// How long the preparation of steps may take, and how often its progress is logged.
constexpr std::chrono::seconds kMaxPreparation{60};
constexpr std::chrono::seconds kReportEvery{2};

Weights load_weights(Operators& ops, const Shard& shard, const Checkpoint& checkpoint, const WeightOptions& options,
                     int threads) {
  Weights weights = run_in_background([&] {
    ThreadPool pool(threads > 0 ? threads : available_cpu_count());
    return Weights::load(shard, checkpoint, options, pool);
  });
  if (ops.shares_host_memory()) weights.adapt_embeddings(shard.spec, checkpoint);
  move_weights(ops, weights);
  return weights;
}

}  // namespace

NativeRunner::NativeRunner(std::unique_ptr<Operators> ops, const Shard& shard, const Checkpoint& checkpoint,
                           const WeightOptions& options, CacheType cache_type, int max_tokens, int threads)
    : NativeRunner(std::move(ops), shard, load_weights(*ops, shard, checkpoint, options, threads), options.dtype,
                   cache_type, max_tokens) {}

NativeRunner::NativeRunner(std::unique_ptr<Operators>&& ops, const Shard& shard, Weights weights, DType adapter_type,
                           CacheType cache_type, int max_tokens)
    : ModelRunner({.vocab_size = logit_count(shard.spec),
                   .hidden_size = shard.spec.hidden_size,
                   .images = image_traits(shard.spec),
                   .is_pooling_model = shard.spec.encoder.has_value(),
                   .shares_cache = ops->shares_host_memory() || shard.count == 1,
                   .samples_on_device = !ops->shares_host_memory() && !shard.spec.encoder}),
      ops_(std::move(ops)),
      spec_(shard.spec),
      weights_(std::move(weights)),
      weight_bytes_(bytes_of(weights_)),
      max_tokens_(max_tokens),
      is_divided_(shard.count > 1),
      returns_output_(shard.rank == 0),
      attention_(*ops_, spec_, cache_type, max_tokens),
      mlp_(*ops_, spec_, max_tokens),
      expert_mlp_(*ops_, spec_, max_tokens),
      adapters_(*ops_, max_tokens),
      adapter_type_(adapter_type),
      step_tokens_(*ops_, spec_, max_tokens),
      outputs_(*ops_, shard, spec_, weights_, max_tokens),
      hidden_(*ops_, max_tokens, spec_.hidden_size),
      normed_(*ops_, max_tokens, spec_.hidden_size),
      mlp_input_(*ops_, max_tokens, spec_.hidden_size),
      branch_(*ops_, max_tokens, spec_.hidden_size),
      experts_(*ops_, spec_.moe && spec_.moe->is_alongside_mlp ? max_tokens : 0, spec_.hidden_size),
      embeddings_(*ops_, spec_.shared_blocks ? max_tokens : 0, spec_.hidden_size),
      joined_(*ops_, spec_.shared_blocks ? max_tokens : 0, 2 * spec_.hidden_size) {
  traits_.adapters = this;
  memories_.push_back(&attention_);
  if (spec_.compressed_attention) memories_.push_back(&compressed_.emplace(*ops_, spec_, cache_type, max_tokens));
  if (spec_.recurrence) memories_.push_back(&recurrence_.emplace(*ops_, shard, max_tokens));
  if (spec_.layer_input) layer_inputs_.emplace(*ops_, spec_, max_tokens);
  if (spec_.streams) residual_streams_.emplace(*ops_, spec_, max_tokens);
  if (spec_.hyper_connections) hyper_.emplace(*ops_, spec_, max_tokens);
  if (spec_.ngrams) ngrams_.emplace(*ops_, spec_, max_tokens);
  if (traits_.images.has_cross_attention)
    memories_.push_back(&cross_.emplace(*ops_, spec_, cache_type, max_tokens, is_divided_));
  if (has_own_image_weights(spec_)) image_tokens_.emplace(*ops_, spec_, max_tokens);
  if (spec_.head) {
    head_.emplace(*ops_, spec_, max_tokens);
    traits_.head = head_->traits();
  }
  compile();
}

NativeRunner::NativeRunner(const ModelSpec& spec, CacheType cache_type)
    : NativeRunner(std::make_unique<CpuOperators>(1), Shard::whole(spec), Weights::outline(spec), DType::kFloat32,
                   cache_type, 1) {}

std::string NativeRunner::program_text(const std::string& spec_file) {
  return NativeRunner(read_model_spec(spec_file), CacheType::kFloat32).program_.text();
}

std::vector<CacheGroup> NativeRunner::cache_groups_of(const ModelSpec& spec, CacheType cache_type,
                                                      const StepLimits& limits) {
  return NativeRunner(spec, cache_type).cache_groups(limits);
}

size_t NativeRunner::weight_bytes_of(const Shard& shard, const Checkpoint& checkpoint, WeightOptions options) {
  options.only_sizes = true;
  ThreadPool pool(1);
  Weights weights = Weights::load(shard, checkpoint, options, pool);
  return bytes_of(weights);
}

void NativeRunner::prepare(const StepLimits& limits) {
  attention_.allocate_texts(*ops_, limits.spans);
  attention_.project_distances(*ops_, weights_);
  if (ops_->shares_host_memory()) return;
  // Prompts alone take most memory: long products, and scratch memory for each. They share their blocks, since nobody
  // looks at what comes of them.
  CacheShare share{plan_cache(limits.block_len, cache_groups(limits)), {}, 0};
  const int blocks_of_one = (limits.context + limits.block_len - 1) / limits.block_len;
  PageTables tables;
  for (int table = 0; table < share.plan.table_count(); ++table) {
    std::vector<int32_t>& pages = tables.emplace_back(static_cast<size_t>(blocks_of_one));
    std::iota(pages.begin(), pages.end(), share.size.page_count);
    share.size.page_count += blocks_of_one;
  }
  allocate_cache(share);
  ops_->reserve_spans(attention_.table_count(), limits.spans,
                      static_cast<size_t>(blocks_of_one) * static_cast<size_t>(limits.spans));
  StepInput input;
  input.tokens.assign(static_cast<size_t>(max_tokens_), 0);
  if (head_) input.alongside.assign(static_cast<size_t>(max_tokens_) * static_cast<size_t>(head_->traits().width), 0);
  for (int row = 0; row < max_tokens_; row += limits.context) {
    const int count = std::min(limits.context, max_tokens_ - row);
    input.spans.push_back({row, count, 0, &tables, SpanLogits::kLast, count});
  }
  is_warming_up_ = true;
  forward(input);
  outputs_.project(0, outputs_.computed_at_once(max_tokens_), false);
  is_warming_up_ = false;
  share.size.page_count = 0;
  allocate_cache(share);
}

void NativeRunner::keep_hidden(const std::vector<int>& layers) {
  if (std::ranges::any_of(layers, [&](int layer) { return layer < 0 || layer >= spec_.num_layers; })) {
    throw invalid_argument("hidden states are wanted in front of a layer that " + spec_.model_name + " does not have");
  }
  keeps_hidden_ = true;
  if (!returns_output_) return compile();
  kept_layers_ = layers;
  kept_ = FloatRows(*ops_, max_tokens_, spec_.hidden_size * static_cast<int>(std::max<size_t>(1, layers.size())));
  if (!ops_->shares_host_memory()) host_kept_ = AlignedBuffer(kept_.size());
  compile();
}

std::vector<CacheGroup> NativeRunner::cache_groups(const StepLimits& limits) const {
  std::vector<CacheGroup> groups;
  for (const LayerMemory* memory : memories_)
    std::ranges::move(memory->cache_groups(limits), std::back_inserter(groups));
  return groups;
}

std::byte* NativeRunner::allocate_cache(const CacheShare& share) {
  std::byte* pages = share.pages;
  if (pages == nullptr) {
    cache_.allocate(*ops_, share.plan.page_bytes, share.size);
    pages = cache_.pages();
  }
  auto group = static_cast<size_t>(share.first_group);
  for (LayerMemory* memory : memories_) group += memory->use_cache(*ops_, share.plan, group, pages);
  return traits_.shares_cache ? pages : nullptr;
}

size_t NativeRunner::prepare_decoding(const StepLimits& limits) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  PreparedSteps* steps = ops_->prepared_steps();
  if (spec_.encoder || steps == nullptr) return 0;
  shapes_ = steps->shapes(limits.spans, limits.context);
  if (shapes_.empty()) return 0;
  connect_ranks();
  for (LayerMemory* memory : memories_) memory->begin_step(*ops_, {});
  is_warming_up_ = true;
  for (const DecodingShape& shape : shapes_) {
    const bool has_outer_context = shape.context == shapes_.front().context || shape.context >= limits.context;
    if (!has_outer_context) continue;
    ops_->wait();  // what was staged for the shape before is there
    steps->set_empty_spans(shape);
    steps->warm_up([&] { run_empty_tokens(shape); });
  }
  is_warming_up_ = false;
  auto reported = begin;
  size_t prepared = 0;
  for (const DecodingShape& shape : shapes_) {
    ops_->wait();
    steps->set_empty_spans(shape);
    if (!steps->prepare(computed_tokens(shape), [&] { run_empty_tokens(shape); })) break;
    ++prepared;
    const auto now = Clock::now();
    if (now - begin > kMaxPreparation) break;
    if (!returns_output_ || now - reported < kReportEvery) continue;
    reported = now;
    std::fprintf(stderr, "preparing steps that decode: %zu of %zu shapes\n", prepared, shapes_.size());
  }
  ops_->wait();  // steps, of another thread, write staging memory again
  return prepared;
}

void NativeRunner::keep_prepared(size_t count) {
  for (size_t i = count; i < shapes_.size(); ++i) {
    ops_->wait();
    ops_->prepared_steps()->set_empty_spans(shapes_[i]);
    ops_->prepared_steps()->erase(computed_tokens(shapes_[i]));
  }
}

void NativeRunner::connect_ranks() {
  if (!is_divided_) return;
  float first = 0;
  for (const size_t rows : {size_t{1}, static_cast<size_t>(max_tokens_)}) {
    ops_->all_reduce(branch_, rows * static_cast<size_t>(spec_.hidden_size));
    ops_->download(branch_.as<void>(), sizeof(first), &first);
  }
}

void NativeRunner::launch(const StepInput& input) {
  const int rows = static_cast<int>(input.tokens.size());
  if (rows > max_tokens_)
    throw internal_error("a step of " + std::to_string(rows) + " rows exceeds the runner's limit");
  if (cross_) cross_->write(*ops_, input, weights_.cross_layers);
  if (rows == 0) return outputs_.end_without_tokens();
  LogitRows logit_rows;
  ModelStep step = stage(input, logit_rows);
  // Which layers adapters add to, and how many rows look at images, differs from step to step.
  const bool is_repeatable = decodes(input, step.embedded) && step.adapters == nullptr && !step.has_cross_spans &&
                             (!head_ || head_->is_repeatable(input));
  ops_->run_step(step.rows, is_repeatable, [&] { program_.run(step); });
  if (spec_.encoder && !takes_one(spec_.encoder->pooling)) return outputs_.end_with_texts(input, hidden_);
  download_kept(rows);
  outputs_.end(logit_rows, step.projected, has_barriers());
}

bool NativeRunner::decodes(const StepInput& input, int embedded) const {
  return embedded == 0 && !spec_.encoder && std::ranges::all_of(input.spans, [](const StepSpan& span) {
           return span.count == 1 && (span.choice != nullptr || span.logit_rows() == 1);
         });
}

ModelStep NativeRunner::stage(const StepInput& input, LogitRows& logit_rows) {
  const int embedded = step_tokens_.stage_embeddings(input);
  const bool decodes = this->decodes(input, embedded);
  for (LayerMemory* memory : memories_) memory->begin_step(*ops_, input);
  logit_rows = step_tokens_.stage(input);
  outputs_.begin(input, step_tokens_);
  const int computed = std::min(ops_->padded_rows(static_cast<int>(input.tokens.size()), decodes), max_tokens_);
  if (head_) head_->begin_step(*ops_, input, outputs_.target_states());
  const bool has_adapters = adapters_.begin_step(*ops_, input, computed);
  const bool has_images = embedded > 0 && image_tokens_ && image_tokens_->begin_step(*ops_, input, computed);
  ModelStep step{
      {*ops_, computed, has_adapters ? &adapters_ : nullptr, has_barriers(), has_images ? &*image_tokens_ : nullptr},
      input,
      embedded,
      cross_ && cross_->has_spans()};
  step.logit_rows = decodes ? computed : logit_rows.count();
  step.projected = outputs_.computed_at_once(step.logit_rows);
  // Adapters and images know rows by their places in the step.
  step.drops_rows = can_drop_rows() && step.logit_rows < computed && embedded == 0 && !has_adapters;
  return step;
}

StepOutput NativeRunner::collect() {
  StepOutput output = outputs_.collect();
  if (kept_.size() > 0) output.token_hidden = (host_kept_.size() > 0 ? host_kept_ : kept_).as<float>();
  return output;
}

void NativeRunner::download_kept(int rows) {
  if (host_kept_.size() == 0 || is_warming_up_) return;
  const size_t bytes = kept_.size() / static_cast<size_t>(max_tokens_) * static_cast<size_t>(rows);
  ops_->download(kept_.as<void>(), bytes, host_kept_.as<void>());
}

void NativeRunner::run_empty_tokens(const DecodingShape& shape) {
  const int computed = computed_tokens(shape);
  StepInput input;
  input.continues_states = true;  // as in the steps of a head that are repeatable
  ModelStep step{{*ops_, computed, nullptr, has_barriers()}, input};
  step.logit_rows = computed;
  step.projected = outputs_.computed_at_once(computed);
  program_.run(step);
}

std::unique_ptr<AdapterFile> NativeRunner::open_adapter(const std::string& directory) const {
  if (image_tokens_) throw invalid_argument("adapters are incompatible with separate weights of image rows");
  return std::make_unique<AdapterPlan>(directory, weights_.adapted_layers, adapter_type_);
}

void NativeRunner::set_adapter(int slot, std::unique_ptr<Adapter> adapter) {
  auto* weights = dynamic_cast<AdapterWeights*>(adapter.get());
  if (weights == nullptr) throw internal_error("an adapter was read by another runner");
  adapter.release();
  adapters_.upload(*ops_, slot, std::unique_ptr<AdapterWeights>(weights));
}

}  // namespace turbomind
