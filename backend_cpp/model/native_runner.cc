#include "model/native_runner.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/cpu_share.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "model/step/image_rows.h"
#include "model/text_encoder.h"

namespace turbomind {

namespace {

// Throws Error naming every such feature of `spec`; support for one deletes its line.
void refuse_what_the_decoder_lacks(const ModelSpec& spec) {
  std::string lacking;
  const auto refuse_if = [&](bool is_used, const char* feature) {
    if (is_used) lacking += (lacking.empty() ? "" : ", ") + std::string(feature);
  };
  if (spec.attention.mla) {
    refuse_if(spec.attention.qk_norm != QkNorm::kNone, "attention.qk_norm with attention.mla");
    refuse_if(spec.attention.norms_rotated, "attention.norms_rotated with attention.mla");
    refuse_if(spec.attention.qkv_clip != 0, "attention.qkv_clip with attention.mla");
    refuse_if(spec.attention.qkv_bias, "attention.qkv_bias with attention.mla");
    refuse_if(spec.attention.softcap != 0, "attention.softcap with attention.mla");
    refuse_if(spec.attention.value_scale != 1, "attention.value_scale with attention.mla");
    refuse_if(!spec.attention.alibi_slopes.empty(), "attention.alibi_slopes with attention.mla");
    refuse_if(spec.attention.has_sinks, "attention.has_sinks with attention.mla");
    refuse_if(spec.attention.logn_length != 0, "attention.logn_length with attention.mla");
    refuse_if(std::any_of(spec.attention.windows.begin(), spec.attention.windows.end(), [](int w) { return w > 0; }),
              "attention.windows with attention.mla");
  }
  refuse_if(spec.moe && spec.moe->router.scales_input && spec.moe->experts_per_token != 1,
            "moe.router.scales_input with several experts a token");
  if (!lacking.empty()) {
    throw invalid_argument(spec.architecture + " needs what the engine does not have yet: " + lacking);
  }
}

// Replaces the memory of each buffer of the weights. Structured bindings name every member of a struct, so a new member
// that is not moved does not compile.
class Mover {
 public:
  explicit Mover(std::function<void(AlignedBuffer&)> move_buffer) : move_buffer_(std::move(move_buffer)) {}

  void move(Weights& weights) {
    auto& [embedding, token_types, position_embedding, embedding_norm, layer_inputs, stream_makers, stream_readers,
           layers, cross_layers, final_norm, head, lm_head, output_bias, vocab, adapted_layers] = weights;
    (void)vocab, (void)adapted_layers;
    all(embedding, token_types, position_embedding, embedding_norm, layer_inputs, stream_makers, stream_readers, layers,
        cross_layers, final_norm, head, lm_head, output_bias);
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

  void move(LayerWeights& layer) {
    auto& [attention_norm, attention, recurrence, attention_output_norm, mlp_norm, mlp, experts, mlp_output_norm,
           dense_output_norm, expert_norm, expert_output_norm, input, streams, scale] = layer;
    (void)scale;
    all(attention_norm, attention, recurrence, attention_output_norm, mlp_norm, mlp, experts, mlp_output_norm,
        dense_output_norm, expert_norm, expert_output_norm, input, streams);
  }

  void move(AttentionWeights& attention) {
    auto& [qkv, latent, q_norm, k_norm, sinks, distance_biases, o] = attention;
    all(qkv, latent, q_norm, k_norm, sinks, distance_biases, o);
  }

  void move(LatentWeights& latent) {
    auto& [q_down, q_down_norm, q, kv_down, kv_down_norm, k_up, v_up, indexer] = latent;
    all(q_down, q_down_norm, q, kv_down, kv_down_norm, k_up, v_up, indexer);
  }

  void move(IndexerWeights& indexer) {
    auto& [queries, keys, key_norm, heads] = indexer;
    all(queries, keys, key_norm, heads);
  }

  void move(RecurrenceWeights& recurrence) {
    auto& [in, gates, decay_down, decay_up, gate_down, gate_up, conv, conv_bias, a_log, dt_bias, skip, norm, out] =
        recurrence;
    all(in, gates, decay_down, decay_up, gate_down, gate_up, conv, conv_bias, a_log, dt_bias, skip, norm, out);
  }

  void move(MlpWeights& mlp) {
    auto& [up, down, xielu, cut] = mlp;
    (void)xielu, (void)cut;
    all(up, down);
  }

  void move(ExpertWeights& weights) {
    auto& [router, router_norm, correction, scales, arena, experts, shared, shared_gate] = weights;
    all(router, router_norm, correction, scales, shared_gate);
    std::vector<LinearWeight*> views;
    for (std::vector<ExpertWeight>* list : {&experts, &shared}) {
      for (ExpertWeight& expert : *list) views.insert(views.end(), {&expert.gate_up, &expert.down});
    }
    arena.move([this](AlignedBuffer& chunk) { move(chunk); }, views);
  }

  void move(LayerInputWeights& input) {
    auto& [gate, project, norm] = input;
    all(gate, project, norm);
  }

  void move(StreamWeights& streams) {
    auto& [router_norm, router, predict, correct, branch_down, branch_up, branch_norm] = streams;
    all(router_norm, router, predict, correct, branch_down, branch_up, branch_norm);
  }

  void move(CrossLayerWeights& layer) {
    auto& [attention_norm, q, kv, q_norm, k_norm, o, attention_gate, mlp_norm, mlp, mlp_gate] = layer;
    (void)attention_gate, (void)mlp_gate;
    all(attention_norm, q, kv, q_norm, k_norm, o, mlp_norm, mlp);
  }

  void move(HeadWeights& head) {
    auto& [join, embedding_norm, hidden_norm] = head;
    all(join, embedding_norm, hidden_norm);
  }

  void move(InputTableWeights& inputs) {
    auto& [table, project, norm] = inputs;
    all(table, project, norm);
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
    move(linear.for_images);
  }

  void move(AlignedBuffer& buffer) { move_buffer_(buffer); }

  std::function<void(AlignedBuffer&)> move_buffer_;
};

// Views point to the device's memory afterwards; the host's is given back piece by piece. Does nothing where the device
// shares the host's memory.
void move_weights(Operators& ops, Weights& weights) {
  if (ops.shares_host_memory()) return;
  size_t total = 0;
  Mover([&](const AlignedBuffer& buffer) { total += buffer.size(); }).move(weights);
  ops.expect(total, MemoryUse::kWeights);
  Mover([&](AlignedBuffer& buffer) {
    if (buffer.size() == 0) return;
    AlignedBuffer there = ops.allocate(buffer.size(), MemoryUse::kWeights);
    ops.upload(buffer.as<void>(), buffer.size(), there.as<void>());
    buffer = std::move(there);
  }).move(weights);
}

// How long the preparation of steps may take, and how often its progress is logged.
constexpr std::chrono::seconds kLongestPreparation{60};
constexpr std::chrono::seconds kReportEvery{2};

ModelSpec checked(const ModelSpec& spec) {
  refuse_what_the_decoder_lacks(spec);
  return spec;
}

Weights load_weights(Operators& ops, const Shard& shard, const Checkpoint& checkpoint, const WeightOptions& options,
                     int threads) {
  ThreadPool pool(threads > 0 ? threads : available_cpu_count());
  Weights weights = Weights::load(shard, checkpoint, options, pool);
  if (ops.shares_host_memory()) weights.adapt_embeddings(shard.spec, checkpoint);
  move_weights(ops, weights);
  return weights;
}

// Whether every sequence adds one token and looks at its logits.
bool is_decoding(const StepInput& input) {
  return std::all_of(input.spans.begin(), input.spans.end(), [](const StepSpan& span) {
    return span.count == 1 && (span.choice != nullptr || span.wanted_rows() == 1);
  });
}

}  // namespace

NativeRunner::NativeRunner(std::unique_ptr<Operators> ops, const Shard& shard, const Checkpoint& checkpoint,
                           const WeightOptions& options, CacheType cache_type, int max_rows, int threads)
    : ModelRunner({.vocab_size = logit_count(shard.spec),
                   .hidden_size = shard.spec.hidden_size,
                   .images = image_traits(shard.spec),
                   .reads_whole = shard.spec.encoder.has_value(),
                   .shares_cache = ops->shares_host_memory() || shard.count == 1,
                   .chooses_tokens = !ops->shares_host_memory() && !shard.spec.encoder}),
      ops_(std::move(ops)),
      spec_(checked(shard.spec)),
      weights_(load_weights(*ops_, shard, checkpoint, options, threads)),
      max_rows_(max_rows),
      is_divided_(shard.count > 1),
      brings_output_(shard.rank == 0),
      attention_(*ops_, spec_, cache_type, max_rows),
      mlp_(*ops_, spec_, max_rows),
      expert_mlp_(*ops_, spec_, max_rows),
      adapters_(*ops_, max_rows),
      adapter_type_(options.dtype),
      rows_(*ops_, spec_, max_rows),
      outputs_(*ops_, shard, spec_, weights_, max_rows),
      hidden_(float_buffer(*ops_, max_rows, spec_.hidden_size)),
      normed_(float_buffer(*ops_, max_rows, spec_.hidden_size)),
      mlp_input_(float_buffer(*ops_, max_rows, spec_.hidden_size)),
      branch_(float_buffer(*ops_, max_rows, spec_.hidden_size)),
      experts_(float_buffer(*ops_, spec_.moe && spec_.moe->is_alongside_mlp ? max_rows : 0, spec_.hidden_size)) {
  traits_.adapters = this;
  if (spec_.recurrence) recurrence_.emplace(*ops_, shard, max_rows);
  if (spec_.layer_input) layer_inputs_.emplace(*ops_, spec_, max_rows);
  if (spec_.streams) residual_streams_.emplace(*ops_, spec_, max_rows);
  if (traits_.images.looks) cross_.emplace(*ops_, spec_, cache_type, max_rows, is_divided_);
  if (has_own_image_weights(spec_)) image_rows_.emplace(*ops_, spec_, max_rows);
  if (spec_.head) {
    head_.emplace(*ops_, spec_, max_rows);
    traits_.head = head_->traits();
  }
}

void NativeRunner::prepare(const StepLimits& limits) {
  attention_.allocate_texts(*ops_, limits.spans);
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
  input.tokens.assign(static_cast<size_t>(max_rows_), 0);
  if (head_) input.alongside.assign(static_cast<size_t>(max_rows_) * static_cast<size_t>(head_->traits().width), 0);
  for (int row = 0; row < max_rows_; row += limits.context) {
    const int count = std::min(limits.context, max_rows_ - row);
    input.spans.push_back({row, count, 0, &tables, SpanRows::kLast, count});
  }
  is_warming_up_ = true;
  forward(input);
  outputs_.project(0, outputs_.computed_at_once(max_rows_), false);
  is_warming_up_ = false;
  share.size.page_count = 0;
  allocate_cache(share);
}

void NativeRunner::keep_hidden(const std::vector<int>& layers) {
  if (std::ranges::any_of(layers, [&](int layer) { return layer < 0 || layer >= spec_.num_layers; })) {
    throw invalid_argument("hidden states are wanted in front of a layer that " + spec_.model_name + " does not have");
  }
  keeps_rows_ = true;
  if (!brings_output_) return;
  kept_layers_ = layers;
  kept_ = float_buffer(*ops_, max_rows_, spec_.hidden_size * static_cast<int>(std::max<size_t>(1, layers.size())));
  if (!ops_->shares_host_memory()) host_kept_ = AlignedBuffer(kept_.size());
}

std::vector<CacheGroup> NativeRunner::cache_groups(const StepLimits& limits) const {
  std::vector<CacheGroup> groups = attention_.cache_groups(limits);
  if (recurrence_) groups.push_back(recurrence_->cache_group());
  if (cross_) groups.push_back(cross_->cache_group(limits.block_len));
  return groups;
}

std::byte* NativeRunner::allocate_cache(const CacheShare& share) {
  std::byte* pages = share.pages;
  if (pages == nullptr) {
    cache_.allocate(*ops_, share.plan.page_bytes, share.size);
    pages = cache_.pages();
  }
  attention_.use_cache(share.plan, share.first_group, pages);
  if (recurrence_) {
    const int group = share.plan.group_of(MemoryKind::kState);
    recurrence_->use_cache(*ops_, share.plan, share.plan.groups.at(static_cast<size_t>(group)), pages);
  }
  if (cross_) {
    const int group = share.plan.group_of(MemoryKind::kCross);
    cross_->use_cache(share.plan, share.plan.groups.at(static_cast<size_t>(group)), pages);
  }
  return traits_.shares_cache ? pages : nullptr;
}

size_t NativeRunner::prepare_decoding(const StepLimits& limits) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  if (spec_.encoder) return 0;
  shapes_ = ops_->decoding_shapes(limits.spans, limits.context);
  if (shapes_.empty()) return 0;
  connect_ranks();
  attention_.begin_step(*ops_, {});
  if (recurrence_) recurrence_->begin_step(*ops_, {});
  is_warming_up_ = true;
  for (const DecodingShape& shape : shapes_) {
    const bool has_outer_context = shape.context == shapes_.front().context || shape.context >= limits.context;
    if (!has_outer_context) continue;
    ops_->wait();  // what was staged for the shape before is there
    ops_->set_empty_spans(shape);
    ops_->warm_up([&] { run_empty_rows(shape); });
  }
  is_warming_up_ = false;
  auto reported = begin;
  size_t prepared = 0;
  for (const DecodingShape& shape : shapes_) {
    ops_->wait();
    ops_->set_empty_spans(shape);
    if (!ops_->prepare_step(computed_rows(shape), [&] { run_empty_rows(shape); })) break;
    ++prepared;
    const auto now = Clock::now();
    if (now - begin > kLongestPreparation) break;
    if (!brings_output_ || now - reported < kReportEvery) continue;
    reported = now;
    std::fprintf(stderr, "preparing steps that decode: %zu of %zu shapes\n", prepared, shapes_.size());
  }
  ops_->wait();  // steps, of another thread, write staging memory again
  return prepared;
}

void NativeRunner::keep_prepared(size_t count) {
  for (size_t i = count; i < shapes_.size(); ++i) {
    ops_->wait();
    ops_->set_empty_spans(shapes_[i]);
    ops_->forget_step(computed_rows(shapes_[i]));
  }
}

void NativeRunner::connect_ranks() {
  if (!is_divided_) return;
  float first = 0;
  for (const size_t rows : {size_t{1}, static_cast<size_t>(max_rows_)}) {
    sum_over_ranks(branch_.as<float>(), rows * static_cast<size_t>(spec_.hidden_size));
    ops_->download(branch_.as<void>(), sizeof(first), &first);
  }
}

void NativeRunner::begin(const StepInput& input) {
  const int rows = static_cast<int>(input.tokens.size());
  if (rows > max_rows_) throw internal_error("a step of " + std::to_string(rows) + " rows exceeds the runner's limit");
  if (cross_) cross_->fill(*ops_, input, weights_.cross_layers);
  if (rows == 0) return outputs_.end_without_rows();
  const int embedded = rows_.stage_embeddings(input);
  const bool looks = cross_ && cross_->begin_step(*ops_, input);
  const bool decodes = embedded == 0 && !spec_.encoder && is_decoding(input);
  attention_.begin_step(*ops_, input);
  if (recurrence_) recurrence_->begin_step(*ops_, input);
  const WantedRows wanted = rows_.stage(input);
  outputs_.begin(input, rows_);
  const int computed = std::min(ops_->padded_rows(rows, decodes), max_rows_);
  if (head_) head_->begin_step(*ops_, input, outputs_.own_states());
  const bool has_adapters = adapters_.begin_step(*ops_, input, computed);
  const bool has_images = embedded > 0 && image_rows_ && image_rows_->begin_step(*ops_, input, computed);
  const int gathered = decodes ? computed : wanted.count();
  const int projected = outputs_.computed_at_once(gathered);
  // Which layers adapters add to, and how many rows look at images, differs from step to step.
  const bool is_repeatable = decodes && !has_adapters && !looks && (!head_ || head_->is_repeatable(input));
  ops_->run_step(computed, is_repeatable, [&] {
    run_rows(
        {*ops_, computed, has_adapters ? &adapters_ : nullptr, meets_ranks(), has_images ? &*image_rows_ : nullptr},
        input, embedded, looks, gathered, projected);
  });
  if (spec_.encoder && !takes_one(spec_.encoder->pooling)) return outputs_.end_with_texts(input, hidden_.as<float>());
  bring_kept(rows);
  outputs_.end(wanted, projected, meets_ranks());
}

StepOutput NativeRunner::take() {
  StepOutput output = outputs_.take();
  if (kept_.size() > 0) output.token_hidden = (host_kept_.size() > 0 ? host_kept_ : kept_).as<float>();
  return output;
}

void NativeRunner::bring_kept(int rows) {
  if (host_kept_.size() == 0 || is_warming_up_) return;
  const size_t bytes = kept_.size() / static_cast<size_t>(max_rows_) * static_cast<size_t>(rows);
  ops_->download(kept_.as<void>(), bytes, host_kept_.as<void>());
}

void NativeRunner::run_rows(const StepContext& step, const StepInput& input, int embedded, bool looks, int wanted,
                            int projected) {
  auto* hidden = hidden_.as<float>();
  step.ops.embed(weights_.embedding.view, rows_.tokens(), step.rows, spec_.embedding_scale, hidden);
  if (step.adapters != nullptr) step.adapters->add_embeddings(step.ops, weights_.embedding, rows_.tokens(), hidden);
  const auto add_embeddings = [&](const LinearStorage& table, const int32_t* numbers) {
    if (numbers == nullptr) return;
    auto* embeddings = branch_.as<float>();
    step.ops.embed(table.view, numbers, step.rows, 1, embeddings);
    step.ops.add_scaled(1, embeddings, step.rows, spec_.hidden_size, hidden);
    if (step.adapters != nullptr) step.adapters->add_embeddings(step.ops, table, numbers, hidden);
  };
  add_embeddings(weights_.position_embedding, rows_.positions());
  add_embeddings(weights_.token_types, rows_.token_types());
  if (spec_.has_embedding_norm) {
    step.ops.norm(weights_.embedding_norm.view, hidden, step.rows, spec_.hidden_size, hidden);
  }
  if (embedded > 0) rows_.replace_embeddings(step, embedded, hidden);
  if (head_) head_->run(step, input, weights_, hidden);
  if (layer_inputs_) layer_inputs_->make(step, *weights_.layer_inputs, rows_.tokens(), hidden);
  if (residual_streams_) residual_streams_->make(step, weights_.stream_makers, hidden);
  attention_.fill_tables(step);
  const bool drops_rows = wanted < step.rows && embedded == 0 && can_drop_rows(step);
  run_layers(step, embedded, looks, drops_rows ? wanted : step.rows);
  outputs_.compute(step, hidden, drops_rows ? nullptr : rows_.wanted(), wanted, projected);
}

void NativeRunner::run_empty_rows(const DecodingShape& shape) {
  const int computed = computed_rows(shape);
  StepInput input;
  input.is_alongside_own = true;  // as in the steps of a head that are repeatable
  run_rows({*ops_, computed, nullptr, meets_ranks()}, input, 0, false, computed, outputs_.computed_at_once(computed));
}

std::unique_ptr<AdapterFile> NativeRunner::open_adapter(const std::string& directory) const {
  if (image_rows_) throw invalid_argument("adapters cannot be had where rows of images take weights of their own");
  return std::make_unique<AdapterPlan>(directory, weights_.adapted_layers, adapter_type_);
}

void NativeRunner::place_adapter(int slot, std::unique_ptr<Adapter> adapter) {
  auto* weights = dynamic_cast<AdapterWeights*>(adapter.get());
  if (weights == nullptr) throw internal_error("an adapter was read by another runner");
  adapter.release();
  adapters_.place(*ops_, slot, std::unique_ptr<AdapterWeights>(weights));
}

// Whether the MLP of the last layer can leave out rows that nobody asks for. A device with its own memory repeats steps
// of fixed rows; adapters, images and what a layer adds after its halves know rows by their places in the step.
bool NativeRunner::can_drop_rows(const StepContext& step) const {
  return ops_->shares_host_memory() && !spec_.encoder && !keeps_rows_ && step.adapters == nullptr &&
         step.images == nullptr && !residual_streams_ && !layer_inputs_ &&
         !block_of(spec_, spec_.num_layers - 1).is_parallel;
}

void NativeRunner::run_layers(const StepContext& step, int embedded, bool looks, int last_rows) {
  int cross = 0;
  for (int layer = 0; layer < spec_.num_layers; ++layer) {
    for (; looks && cross < cross_layer_count(spec_) && spec_.images->cross_layers[cross] == layer; ++cross) {
      cross_->run(step.ops, cross, weights_.cross_layers[cross], mlp_, hidden_.as<float>());
    }
    keep_stream(step, layer);
    run_layer(step, layer, layer + 1 == spec_.num_layers ? last_rows : step.rows);
    if (embedded > 0 && layer < spec_.images->deepstack_layers) {
      rows_.add_deepstack(step, layer, embedded, hidden_.as<float>());
    }
  }
  if (residual_streams_) residual_streams_->merge(step, weights_.stream_readers, hidden_.as<float>());
  keep_stream(step, spec_.num_layers);
}

void NativeRunner::keep_stream(const StepContext& step, int layer) {
  if (kept_.size() == 0) return;
  const int size = spec_.hidden_size;
  auto* hidden = hidden_.as<float>();
  if (kept_layers_.empty() && layer == spec_.num_layers) {
    step.ops.norm(weights_.final_norm.view, hidden, step.rows, size, kept_.as<float>());
  }
  const size_t width = kept_layers_.size() * static_cast<size_t>(size);
  for (size_t i = 0; i < kept_layers_.size(); ++i) {
    if (kept_layers_[i] != layer) continue;
    step.ops.copy_heads({hidden, step.rows, static_cast<size_t>(size), 1, 0, size},
                        {kept_.as<float>() + i * static_cast<size_t>(size), step.rows, width, 1, 0, size});
  }
}

void NativeRunner::run_layer(const StepContext& step, int index, int mlp_rows) {
  const LayerWeights& layer = weights_.layers[static_cast<size_t>(index)];
  auto* hidden = hidden_.as<float>();
  auto* normed = normed_.as<float>();
  if (residual_streams_) residual_streams_->predict(step, *layer.streams, hidden);
  const BlockSpec& block = block_of(spec_, index);
  const bool adds_directly = this->adds_directly(block);
  // Both halves of a layer add to branch_, which is added once.
  const bool joins_halves = !adds_directly && !block.has_output_norms && block.is_parallel;
  auto* target = adds_directly ? hidden : branch_.as<float>();
  const float* heads_input = head_ && index == 0 ? head_->first_input() : nullptr;
  const auto normed_by = [&](const NormStorage& norm) {
    const bool has_norm = block.has_input_norms && !block.norms_stream;
    return has_norm ? LinearInput::normed(norm.view, hidden, normed) : LinearInput(hidden);
  };
  const auto norm_stream = [&](const StepContext& rows, const NormStorage& norm) {
    if (block.norms_stream) rows.ops.norm(norm.view, hidden, rows.rows, spec_.hidden_size, hidden);
  };
  const bool attends = has_attention(spec_, index);
  const bool has_mlp = spec_.layer_mlps[static_cast<size_t>(index)];
  if (block.skips_first_norm && index == 0) heads_input = hidden;
  LinearInput input = heads_input != nullptr ? LinearInput(heads_input) : normed_by(layer.attention_norm);
  LinearInput mlp_input = normed_by(layer.mlp_norm);
  if (block.is_parallel) {  // both halves read the stream as it is now
    if (block.shares_norm) {
      mlp_input = input = step.ops.make_rows(input, step.rows, spec_.hidden_size);
    } else {
      mlp_input.workspace = mlp_input_.as<float>();
      mlp_input = step.ops.make_rows(mlp_input, step.rows, spec_.hidden_size);
    }
  }
  if (residual_streams_) {
    input = step.ops.make_rows(input, step.rows, spec_.hidden_size);
    residual_streams_->branch(step, *layer.streams, input.x.floats());
  }
  if (layer.recurrence && attends) input = step.ops.make_rows(input, step.rows, spec_.hidden_size);
  if (layer.recurrence || attends) norm_stream(step, layer.attention_norm);
  if (layer.recurrence) recurrence_->run(step, index, *layer.recurrence, input, target, adds_directly);
  if (attends) attention_.run(step, index, layer.attention, input, target, adds_directly || layer.recurrence);
  if ((layer.recurrence || attends) && !joins_halves) add_branch(step, block, layer.attention_output_norm);
  if (residual_streams_) residual_streams_->join(step, hidden);
  StepContext rest = step;
  if (mlp_rows < step.rows) {
    rest.rows = mlp_rows;
    keep_wanted_rows(mlp_rows);
    if (mlp_rows == 0) return;
  }
  if (!has_mlp) return finish_layer(rest, index, layer);
  norm_stream(rest, layer.mlp_norm);
  const bool is_alongside = layer.experts && spec_.moe->is_alongside_mlp;
  if (is_alongside) {
    run_mlp_and_experts(rest, layer, mlp_input);
  } else if (layer.experts) {
    const float* rows = rest.ops.make_rows(mlp_input, rest.rows, spec_.hidden_size);
    expert_mlp_.run(rest, *layer.experts, rows, hidden, target, adds_directly || joins_halves);
  } else {
    mlp_.run(rest, layer.mlp, mlp_input, target, adds_directly || joins_halves);
  }
  add_branch(rest, block, layer.mlp_output_norm, is_alongside);
  finish_layer(rest, index, layer);
}

// Moves the rows that are wanted to the front of the residual stream.
void NativeRunner::keep_wanted_rows(int count) {
  auto* gathered = mlp_input_.as<float>();
  ops_->gather_rows(hidden_.as<float>(), rows_.wanted(), count, spec_.hidden_size, gathered);
  ops_->copy(gathered, static_cast<size_t>(count) * spec_.hidden_size * sizeof(float), hidden_.as<float>());
}

void NativeRunner::run_mlp_and_experts(const StepContext& step, const LayerWeights& layer,
                                       const LinearInput& mlp_input) {
  const int size = spec_.hidden_size;
  const size_t count = static_cast<size_t>(step.rows) * static_cast<size_t>(size);
  auto* branch = branch_.as<float>();
  auto* experts = experts_.as<float>();
  mlp_.run(step, layer.mlp, mlp_input, branch, false);
  sum_over_ranks(branch, count);
  step.ops.norm(layer.dense_output_norm.view, branch, step.rows, size, branch);
  auto* normed = normed_.as<float>();
  step.ops.norm(layer.expert_norm.view, hidden_.as<float>(), step.rows, size, normed);
  expert_mlp_.run(step, *layer.experts, normed, hidden_.as<float>(), experts, false);
  sum_over_ranks(experts, count);
  step.ops.norm(layer.expert_output_norm.view, experts, step.rows, size, experts);
  step.ops.add_scaled(1, experts, step.rows, size, branch);
}

void NativeRunner::finish_layer(const StepContext& step, int index, const LayerWeights& layer) {
  auto* hidden = hidden_.as<float>();
  if (residual_streams_) {
    residual_streams_->correct(step, *layer.streams, hidden);
    if (!layer_inputs_) return;
    layer_inputs_->run(step, index, *layer.input, residual_streams_->active(step), branch_.as<float>());
    return residual_streams_->add(step, branch_.as<float>());
  }
  if (layer_inputs_) {
    layer_inputs_->run(step, index, *layer.input, hidden, branch_.as<float>());
    step.ops.add_scaled(1, branch_.as<float>(), step.rows, spec_.hidden_size, hidden);
  }
  if (layer.scale != 1) step.ops.scale_and_cap(layer.scale, 0, step.rows, spec_.hidden_size, hidden);
}

// Whether the halves of a layer add to the residual stream themselves.
bool NativeRunner::adds_directly(const BlockSpec& block) const {
  return !is_divided_ && !block.has_output_norms && !block.norms_stream && block.residual_scale == 1 &&
         block.stream_scale == 1;
}

void NativeRunner::add_branch(const StepContext& step, const BlockSpec& block, const NormStorage& output_norm,
                              bool is_summed) {
  if (adds_directly(block)) return;
  auto* branch = branch_.as<float>();
  if (!is_summed) sum_over_ranks(branch, static_cast<size_t>(step.rows) * spec_.hidden_size);
  if (block.has_output_norms) step.ops.norm(output_norm.view, branch, step.rows, spec_.hidden_size, branch);
  if (block.stream_scale != 1) {
    step.ops.scale_and_cap(block.stream_scale, 0, step.rows, spec_.hidden_size, hidden_.as<float>());
  }
  step.ops.add_scaled(block.residual_scale, branch, step.rows, spec_.hidden_size, hidden_.as<float>());
}

void NativeRunner::sum_over_ranks(float* x, size_t count) {
  if (meets_ranks()) ops_->all_reduce(x, count);
}

}  // namespace turbomind
