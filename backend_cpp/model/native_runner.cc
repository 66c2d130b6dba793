#include "model/native_runner.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/cpu_share.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "model/encoder/text_pooling.h"
#include "model/move_weights.h"
#include "model/spec/decoder_limits.h"

namespace turbomind {

namespace {

// Logits at once on a device with its own memory: a chunk of 256 rows of a large vocabulary is 128 MiB.
constexpr int kDeviceLogitRows = 256;

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
  move_weights(ops, weights);
  return weights;
}

bool has_token_types(const ModelSpec& spec) {
  return spec.encoder && spec.encoder->token_types > 0;
}

// Whether every sequence adds one token and looks at its logits.
bool is_decoding(const StepInput& input) {
  return std::all_of(input.spans.begin(), input.spans.end(), [](const StepSpan& span) {
    return span.count == 1 && (span.choice != nullptr || span.wanted_rows() == 1);
  });
}

ImageTraits image_traits(const ModelSpec& spec) {
  if (!spec.images) return {};
  const bool has_grid =
      std::any_of(spec.ropes.begin(), spec.ropes.end(), [](const RopeSpec& rope) { return !rope.axes.empty(); });
  return {spec.hidden_size * (1 + spec.images->deepstack_layers), has_grid, spec.images->whole_rows > 0,
          !spec.images->cross_layers.empty()};
}

}  // namespace

NativeRunner::NativeRunner(std::unique_ptr<Operators> ops, const Shard& shard, const Checkpoint& checkpoint,
                           const WeightOptions& options, CacheType cache_type, int max_rows, int threads)
    : ModelRunner({.vocab_size = logit_count(shard.spec),
                   .hidden_size = shard.spec.hidden_size,
                   .images = image_traits(shard.spec),
                   .reads_whole = shard.spec.encoder.has_value(),
                   .shares_cache = ops->shares_host_memory(),
                   .chooses_tokens = !ops->shares_host_memory() && !shard.spec.encoder}),
      ops_(std::move(ops)),
      spec_(checked(shard.spec)),
      weights_(load_weights(*ops_, shard, checkpoint, options, threads)),
      max_rows_(max_rows),
      logit_rows_at_once_(ops_->shares_host_memory() ? max_rows : std::min(max_rows, kDeviceLogitRows)),
      rank_(shard.rank),
      vocab_part_(shard.vocab_part),
      is_divided_(shard.count > 1),
      brings_output_(shard.rank == 0),
      attention_(*ops_, spec_, cache_type, max_rows),
      mlp_(*ops_, spec_, max_rows),
      expert_mlp_(*ops_, spec_, max_rows),
      adapters_(*ops_, max_rows),
      adapter_type_(options.dtype),
      tokens_(*ops_, static_cast<size_t>(max_rows) * sizeof(int32_t)),
      positions_(*ops_, spec_.learned_positions > 0 ? static_cast<size_t>(max_rows) * sizeof(int32_t) : 0),
      token_types_(*ops_, has_token_types(spec_) ? static_cast<size_t>(max_rows) * sizeof(int32_t) : 0),
      outputs_(*ops_, static_cast<size_t>(max_rows) * sizeof(int32_t)),
      embeddings_(*ops_, static_cast<size_t>(max_rows) * static_cast<size_t>(traits_.images.width) * sizeof(float)),
      embedding_rows_(*ops_, spec_.images ? static_cast<size_t>(max_rows) * sizeof(int32_t) : 0),
      hidden_(float_buffer(*ops_, max_rows, spec_.hidden_size)),
      normed_(float_buffer(*ops_, max_rows, spec_.hidden_size)),
      mlp_input_(float_buffer(*ops_, max_rows, spec_.hidden_size)),
      branch_(float_buffer(*ops_, max_rows, spec_.hidden_size)),
      experts_(float_buffer(*ops_, spec_.moe && spec_.moe->is_alongside_mlp ? max_rows : 0, spec_.hidden_size)),
      output_rows_(float_buffer(*ops_, max_rows, spec_.hidden_size)),
      logits_(float_buffer(*ops_, spec_.encoder ? 0 : logit_rows_at_once_, logit_count(spec_))),
      logit_parts_(float_buffer(*ops_, is_divided_ && !spec_.encoder ? logit_rows_at_once_ : 0,
                                shard.count * shard.vocab_part)) {
  if (spec_.recurrence) recurrence_.emplace(*ops_, shard, max_rows);
  if (spec_.layer_input) layer_inputs_.emplace(*ops_, spec_, max_rows);
  if (spec_.streams) residual_streams_.emplace(*ops_, spec_, max_rows);
  if (traits_.images.looks) cross_.emplace(*ops_, spec_, cache_type, max_rows, is_divided_);
  if (spec_.head) {
    head_.emplace(*ops_, spec_, max_rows);
    traits_.head = head_->traits();
    if (head_->goes_on_with_stream()) streams_ = float_buffer(*ops_, max_rows, spec_.hidden_size);
  }
  if (ops_->shares_host_memory()) return;
  if (!spec_.encoder) sampler_ = ops_->make_sampler(logit_count(spec_), max_rows);
  if (!brings_output_) return;
  if (!spec_.encoder) {
    host_logits_ = AlignedBuffer(static_cast<size_t>(max_rows) * logit_count(spec_) * sizeof(float));
  }
  host_rows_ = AlignedBuffer(static_cast<size_t>(max_rows) * spec_.hidden_size * sizeof(float));
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
  for (int row = 0; row < max_rows_; row += limits.context) {
    const int count = std::min(limits.context, max_rows_ - row);
    input.spans.push_back({row, count, 0, &tables, SpanRows::kLast, count});
  }
  is_warming_up_ = true;
  forward(input);
  if (!spec_.encoder) project(0, logit_rows_at_once_);
  is_warming_up_ = false;
  share.size.page_count = 0;
  allocate_cache(share);
}

void NativeRunner::keep_hidden(const std::vector<int>& layers) {
  if (!ops_->shares_host_memory()) throw invalid_argument("hidden states of all tokens are handed out on CPUs alone");
  if (std::ranges::any_of(layers, [&](int layer) { return layer < 0 || layer >= spec_.num_layers; })) {
    throw invalid_argument("hidden states are wanted in front of a layer that " + spec_.model_name + " does not have");
  }
  if (!brings_output_) return;
  kept_layers_ = layers;
  kept_ = float_buffer(*ops_, max_rows_, spec_.hidden_size * static_cast<int>(std::max<size_t>(1, layers.size())));
}

std::vector<CacheGroup> NativeRunner::cache_groups(const StepLimits& limits) const {
  std::vector<CacheGroup> groups = attention_.cache_groups(limits);
  if (recurrence_) groups.push_back(recurrence_->cache_group());
  if (cross_) groups.push_back(cross_->cache_group(limits.block_len));
  return groups;
}

void NativeRunner::allocate_cache(const CacheShare& share) {
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
  if (!cross_) return;
  const int group = share.plan.group_of(MemoryKind::kCross);
  cross_->use_cache(share.plan, share.plan.groups.at(static_cast<size_t>(group)), pages);
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
  if (rows == 0) return begin_without_rows();
  const int embedded = stage_embeddings(input);
  const bool looks = cross_ && cross_->begin_step(*ops_, input);
  const bool decodes = embedded == 0 && !spec_.encoder && is_decoding(input);
  const Outputs outputs = stage(input);
  const int computed = std::min(ops_->padded_rows(rows, decodes), max_rows_);
  const bool has_adapters = adapters_.begin_step(*ops_, input, computed);
  const int projected = spec_.encoder ? 0 : std::min(decodes ? computed : outputs.count(), logit_rows_at_once_);
  if (!in_flight_.empty()) sampler_->place(in_flight_, tokens_.device<int32_t>());
  // Which layers adapters add to, and how many rows look at images, differs from step to step.
  ops_->run_step(computed, decodes && !has_adapters && !looks, [&] {
    run_rows({*ops_, computed, has_adapters ? &adapters_ : nullptr, meets_ranks()}, input, embedded, looks,
             decodes ? computed : outputs.count(), projected);
  });
  if (spec_.encoder && !takes_one(spec_.encoder->pooling)) return pool_texts(input);
  give_out(outputs, projected);
}

void NativeRunner::run_rows(const StepContext& step, const StepInput& input, int embedded, bool looks, int outputs,
                            int projected) {
  auto* hidden = hidden_.as<float>();
  step.ops.embed(weights_.embedding.view, tokens_.device<int32_t>(), step.rows, spec_.embedding_scale, hidden);
  if (spec_.learned_positions > 0) {
    auto* positions = branch_.as<float>();
    step.ops.embed(weights_.position_embedding.view, positions_.device<int32_t>(), step.rows, 1, positions);
    step.ops.add_scaled(1, positions, step.rows, spec_.hidden_size, hidden);
  }
  if (token_types_.size() > 0) {
    auto* types = branch_.as<float>();
    step.ops.embed(weights_.token_types.view, token_types_.device<int32_t>(), step.rows, 1, types);
    step.ops.add_scaled(1, types, step.rows, spec_.hidden_size, hidden);
  }
  if (spec_.has_embedding_norm) {
    step.ops.norm(weights_.embedding_norm.view, hidden, step.rows, spec_.hidden_size, hidden);
  }
  if (embedded > 0) {
    step.ops.scatter_rows(embeddings_.device<float>(), embedding_rows_.device<int32_t>(), embedded, spec_.hidden_size,
                          hidden, false);
  }
  if (head_) head_->run(step, input, weights_, hidden);
  if (layer_inputs_) layer_inputs_->make(step, *weights_.layer_inputs, tokens_.device<int32_t>(), hidden);
  if (residual_streams_) residual_streams_->make(step, weights_.stream_makers, hidden);
  attention_.fill_tables(step);
  run_layers(step, embedded, looks);
  gather_outputs(outputs);
  project(0, projected);
}

void NativeRunner::run_empty_rows(const DecodingShape& shape) {
  const int computed = computed_rows(shape);
  run_rows({*ops_, computed, nullptr, meets_ranks()}, {}, 0, false, computed, std::min(computed, logit_rows_at_once_));
}

void NativeRunner::begin_without_rows() {
  if (sampler_) {
    sampler_->begin({});
    sampler_->end();
  }
  output_ = {};
}

std::unique_ptr<AdapterFile> NativeRunner::open_adapter(const std::string& directory) const {
  return std::make_unique<AdapterPlan>(directory, weights_.adapted_layers, adapter_type_);
}

void NativeRunner::place_adapter(int slot, std::unique_ptr<Adapter> adapter) {
  auto* weights = dynamic_cast<AdapterWeights*>(adapter.get());
  if (weights == nullptr) throw internal_error("an adapter was read by another runner");
  adapter.release();
  adapters_.place(*ops_, slot, std::unique_ptr<AdapterWeights>(weights));
}

StepOutput NativeRunner::take() {
  if (sampler_) {
    output_.chosen = sampler_->take();
    output_.device_seconds = sampler_->seconds_taken();
  }
  return output_;
}

NativeRunner::Outputs NativeRunner::stage(const StepInput& input) {
  attention_.begin_step(*ops_, input);
  if (recurrence_) recurrence_->begin_step(*ops_, input);
  if (sampler_) {
    std::vector<const TokenChoice*> choices;
    for (const StepSpan& span : input.spans) {
      if (span.choice != nullptr) choices.push_back(span.choice);
    }
    sampler_->begin(choices);
  }
  stage_tokens(input);
  return stage_outputs(input);
}

void NativeRunner::stage_tokens(const StepInput& input) {
  auto* tokens = tokens_.host<int32_t>();
  in_flight_.clear();
  for (size_t row = 0; row < input.tokens.size(); ++row) {
    const int32_t token = input.tokens[row];
    tokens[row] = std::max(token, 0);
    if (token < 0) {
      in_flight_.push_back({static_cast<int>(row), choice_of_span_.at(static_cast<size_t>(span_of_in_flight(token)))});
    }
  }
  if (spec_.layer_input) {
    for (const int row : embedded_rows_) tokens[row] = spec_.layer_input->image_token;
  }
  tokens_.upload(*ops_, input.tokens.size() * sizeof(int32_t));
  if (spec_.learned_positions > 0) stage_positions(input);
  if (token_types_.size() > 0) stage_token_types(input);
}

void NativeRunner::stage_token_types(const StepInput& input) {
  auto* types = token_types_.host<int32_t>();
  for (const StepSpan& span : input.spans) {
    const int second = span.second_text > 0 && spec_.encoder->token_types > 1 ? span.second_text : span.count;
    std::fill_n(types + span.first_row, second, 0);
    std::fill_n(types + span.first_row + second, span.count - second, 1);
  }
  token_types_.upload(*ops_, input.tokens.size() * sizeof(int32_t));
}

// Positions beyond the table, which settings refuse, read its last row.
void NativeRunner::stage_positions(const StepInput& input) {
  auto* positions = positions_.host<int32_t>();
  for (const StepSpan& span : input.spans) {
    for (int row = 0; row < span.count; ++row) {
      positions[span.first_row + row] = std::min(span.first_position + row, spec_.learned_positions - 1);
    }
  }
  positions_.upload(*ops_, input.tokens.size() * sizeof(int32_t));
}

NativeRunner::Outputs NativeRunner::stage_outputs(const StepInput& input) {
  Outputs outputs;
  auto* next = outputs_.host<int32_t>();
  choice_of_span_.clear();
  for (const StepSpan& span : input.spans) {
    choice_of_span_.push_back(outputs.choices);
    if (span.choice == nullptr) continue;
    *next++ = span.first_row + span.count - 1;
    ++outputs.choices;
  }
  for (const StepSpan& span : input.spans) {
    const bool takes_first = spec_.encoder && spec_.encoder->pooling == TextPooling::kFirst;
    const int first = takes_first ? 0 : span.count - span.wanted_rows();
    for (int row = first; row < first + span.wanted_rows(); ++row) *next++ = span.first_row + row;
    outputs.rows += span.wanted_rows();
  }
  outputs_.upload(*ops_, static_cast<size_t>(outputs.count()) * sizeof(int32_t));
  return outputs;
}

int NativeRunner::stage_embeddings(const StepInput& input) {
  struct Source {
    const EmbeddingRows* rows;
    int row;
  };
  std::vector<Source> sources;
  embedded_rows_.clear();
  for (const StepSpan& span : input.spans) {
    const int end = span.first_position + span.count;
    for (const EmbeddingRange& range : span.embeddings) {
      for (int at = std::max(span.first_position, range.begin); at < std::min(end, range.end()); ++at) {
        embedded_rows_.push_back(span.first_row + at - span.first_position);
        embedding_rows_.host<int32_t>()[sources.size()] = embedded_rows_.back();
        sources.push_back({range.rows.get(), at - range.begin});
      }
    }
  }
  if (sources.empty()) return 0;
  auto* to = embeddings_.host<float>();
  const int parts = 1 + spec_.images->deepstack_layers;
  for (int part = 0; part < parts; ++part) {
    for (const Source& source : sources) {
      source.rows->read(source.row, part * spec_.hidden_size, spec_.hidden_size, to);
      to += spec_.hidden_size;
    }
  }
  embeddings_.upload(*ops_, static_cast<size_t>(to - embeddings_.host<float>()) * sizeof(float));
  embedding_rows_.upload(*ops_, sources.size() * sizeof(int32_t));
  return static_cast<int>(sources.size());
}

void NativeRunner::add_deepstack(const StepContext& step, int layer, int count) {
  const size_t part = static_cast<size_t>(count) * static_cast<size_t>(spec_.hidden_size);
  step.ops.scatter_rows(embeddings_.device<float>() + static_cast<size_t>(1 + layer) * part,
                        embedding_rows_.device<int32_t>(), count, spec_.hidden_size, hidden_.as<float>(), true);
}

void NativeRunner::run_layers(const StepContext& step, int embedded, bool looks) {
  int cross = 0;
  for (int layer = 0; layer < spec_.num_layers; ++layer) {
    for (; looks && cross < cross_layer_count(spec_) && spec_.images->cross_layers[cross] == layer; ++cross) {
      cross_->run(step.ops, cross, weights_.cross_layers[cross], mlp_, hidden_.as<float>());
    }
    keep_stream(step, layer);
    run_layer(step, layer);
    if (embedded > 0 && layer < spec_.images->deepstack_layers) add_deepstack(step, layer, embedded);
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

void NativeRunner::run_layer(const StepContext& step, int index) {
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
  const auto norm_stream = [&](const NormStorage& norm) {
    if (block.norms_stream) step.ops.norm(norm.view, hidden, step.rows, spec_.hidden_size, hidden);
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
    residual_streams_->branch(step, *layer.streams, input.x);
  }
  if (layer.recurrence && attends) input = step.ops.make_rows(input, step.rows, spec_.hidden_size);
  if (layer.recurrence || attends) norm_stream(layer.attention_norm);
  if (layer.recurrence) recurrence_->run(step, index, *layer.recurrence, input, target, adds_directly);
  if (attends) attention_.run(step, index, layer.attention, input, target, adds_directly || layer.recurrence);
  if ((layer.recurrence || attends) && !joins_halves) add_branch(step, block, layer.attention_output_norm);
  if (residual_streams_) residual_streams_->join(step, hidden);
  if (!has_mlp) return finish_layer(step, index, layer);
  norm_stream(layer.mlp_norm);
  const bool is_alongside = layer.experts && spec_.moe->is_alongside_mlp;
  if (is_alongside) {
    run_mlp_and_experts(step, layer, mlp_input);
  } else if (layer.experts) {
    const float* rows = step.ops.make_rows(mlp_input, step.rows, spec_.hidden_size);
    expert_mlp_.run(step, *layer.experts, rows, hidden, target, adds_directly || joins_halves);
  } else {
    mlp_.run(step, layer.mlp, mlp_input, target, adds_directly || joins_halves);
  }
  add_branch(step, block, layer.mlp_output_norm, is_alongside);
  finish_layer(step, index, layer);
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

void NativeRunner::gather_outputs(int count) {
  if (spec_.encoder && !takes_one(spec_.encoder->pooling)) return;  // all rows of a text go into its vector
  auto* rows = output_rows_.as<float>();
  ops_->gather_rows(hidden_.as<float>(), outputs_.device<int32_t>(), count, spec_.hidden_size, rows);
  if (spec_.head && !has_outer_norms(*spec_.head)) return;
  if (streams_.size() > 0) {
    ops_->gather_rows(hidden_.as<float>(), outputs_.device<int32_t>(), count, spec_.hidden_size, streams_.as<float>());
  }
  ops_->norm(weights_.final_norm.view, rows, count, spec_.hidden_size, rows);
}

void NativeRunner::project(int first, int count) {
  if (count == 0) return;
  const float* rows = output_rows_.as<float>() + static_cast<size_t>(first) * spec_.hidden_size;
  auto* logits = logits_.as<float>();
  if (is_divided_) {
    project_together(rows, count);
  } else {
    ops_->linear(weights_.output_layer(), rows, count, logits, false);
  }
  if (spec_.output.scale != 1 || spec_.output.softcap != 0) {
    ops_->scale_and_cap(spec_.output.scale, spec_.output.softcap, count, logit_count(spec_), logits);
  }
}

void NativeRunner::project_together(const float* rows, int count) {
  const LinearWeight layer = weights_.output_layer();
  const auto width = static_cast<size_t>(vocab_part_);
  const auto vocab = static_cast<size_t>(logit_count(spec_));
  const size_t part = static_cast<size_t>(count) * width;
  auto* parts = logit_parts_.as<float>();
  if (layer.out_features > 0) ops_->linear(layer, rows, count, parts + static_cast<size_t>(rank_) * part, false);
  if (!is_warming_up_) ops_->all_gather(parts, part);
  // Rows side by side again: those of whole parts, and those of the last one.
  const auto whole = static_cast<int>(vocab / width);
  const auto rest = static_cast<int>(vocab % width);
  auto* logits = logits_.as<float>();
  if (whole > 0) {
    ops_->copy_heads({parts, count, width, whole, part, vocab_part_},
                     {logits, count, vocab, whole, width, vocab_part_});
  }
  if (rest > 0) {
    const auto before = static_cast<size_t>(whole);
    ops_->copy_heads({parts + before * part, count, static_cast<size_t>(rest), 1, 0, rest},
                     {logits + before * width, count, vocab, 1, 0, rest});
  }
}

void NativeRunner::sum_over_ranks(float* x, size_t count) {
  if (meets_ranks()) ops_->all_reduce(x, count);
}

void NativeRunner::pool_texts(const StepInput& input) {
  const auto rows = static_cast<int>(input.tokens.size());
  const auto width = static_cast<size_t>(spec_.hidden_size);
  auto* normed = normed_.as<float>();
  ops_->norm(weights_.final_norm.view, hidden_.as<float>(), rows, spec_.hidden_size, normed);
  const bool is_host = ops_->shares_host_memory();
  if (!is_host) bring(normed, rows, spec_.hidden_size, host_rows_.as<float>());
  const float* from = is_host ? normed : host_rows_.as<float>();
  output_ = {};
  if (!brings_output_) return;
  vectors_.resize(input.spans.size() * width);
  float* to = vectors_.data();
  for (const StepSpan& span : input.spans) {
    pool_text(spec_.encoder->pooling, from + static_cast<size_t>(span.first_row) * width, span.count, spec_.hidden_size,
              to);
    to += width;
  }
  output_.hidden = vectors_.data();
}

void NativeRunner::give_out(const Outputs& outputs, int projected) {
  if (ops_->shares_host_memory()) {
    output_ = {};
    output_.logits = logits_.size() > 0 ? logits_.as<float>() : nullptr;
    output_.hidden = streams_.size() > 0 ? streams_.as<float>() : output_rows_.as<float>();
    output_.token_hidden = kept_.size() > 0 ? kept_.as<float>() : nullptr;
    return;
  }
  for (int first = 0; first < outputs.count() && !spec_.encoder; first += logit_rows_at_once_) {
    const int count = std::min(logit_rows_at_once_, outputs.count() - first);
    if (first >= projected) project(first, count);
    const int choices = std::clamp(outputs.choices - first, 0, count);
    if (choices > 0) sampler_->choose(first, choices, logits_.as<float>());
    bring_logits(choices, count - choices, first + choices - outputs.choices);
  }
  if (sampler_) sampler_->end();
  const auto skipped = static_cast<size_t>(outputs.choices) * static_cast<size_t>(spec_.hidden_size);
  bring(output_rows_.as<float>() + skipped, outputs.rows, spec_.hidden_size, host_rows_.as<float>());
  output_ = {};
  output_.logits = host_logits_.size() > 0 ? host_logits_.as<float>() : nullptr;
  output_.hidden = host_rows_.as<float>();
}

// `count` rows of logits from row `from` on, which are the wanted rows from `wanted` on.
void NativeRunner::bring_logits(int from, int count, int wanted) {
  if (count == 0) return;
  const auto vocab = static_cast<size_t>(logit_count(spec_));
  bring(logits_.as<float>() + static_cast<size_t>(from) * vocab, count, logit_count(spec_),
        host_logits_.as<float>() + static_cast<size_t>(wanted) * vocab);
}

void NativeRunner::bring(const float* from, int rows, int width, float* to) {
  if (rows == 0 || !brings_output_) return;
  ops_->download(from, static_cast<size_t>(rows) * static_cast<size_t>(width) * sizeof(float), to);
}

}  // namespace turbomind
