#include "model/attention/self_attention.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <ranges>
#include <utility>

#include "base/error.h"
#include "model/step/image_tokens.h"
#include "model/weights.h"

namespace turbomind {

namespace {

CacheLayout cache_shape(const ModelSpec& spec, int kind, CacheType type) {
  if (const auto& mla = attention_kind(spec, kind).mla) {
    return {type, spec.num_layers, 1, mla->rope_dim + mla->kv_rank, mla->kv_rank, 0};
  }
  const HeadSizes sizes = head_sizes(spec, kind);
  return {type, spec.num_layers, sizes.kv_heads, sizes.head_dim, sizes.value_dim, 0};
}

// Position-dependent factor of queries.
float temperature_of(const AttentionSpec& spec, int position) {
  if (spec.temperature_length == 0) return 1;
  return 1 + spec.temperature_scale * std::log(1.0f + static_cast<float>(position / spec.temperature_length));
}

// Rows of a sequence that see chunks are a span for each, whose positions and blocks are counted from its begin.
void add_spans(const StepSpan& span, const int32_t* blocks, int block_len, int chunk,
               std::vector<AttentionSpan>& spans) {
  if (chunk == 0) return spans.push_back({span.first_token, span.count, span.first_position, blocks});
  for (int row = 0; row < span.count;) {
    const int begin = (span.first_position + row) / chunk * chunk;
    const int offset = span.first_position + row - begin;
    const int count = std::min(span.count - row, chunk - offset);
    spans.push_back({span.first_token + row, count, offset, blocks + begin / block_len});
    row += count;
  }
}

bool has_norm_weights(const AttentionSpec& spec) {
  return spec.qk_norm != QkNorm::kNone && spec.qk_norm != QkNorm::kUnit;
}

}  // namespace

AttentionWeights AttentionWeights::load(const Shard& shard, const WeightReader& read, const std::string& prefix,
                                        int layer, int inputs) {
  const ModelSpec& spec = shard.spec;
  const int kind = attention_of(spec, layer);
  const AttentionSpec& kind_spec = attention_kind(spec, kind);
  const AttentionHeads& heads = shard.attention[static_cast<size_t>(kind)];
  AttentionWeights weights;
  if (kind_spec.has_sinks) weights.sinks = read.vector(prefix + "sinks", heads.queries);
  if (const auto& mla = kind_spec.mla) {
    weights.latent = LatentWeights::load(shard, read, prefix, layer);
    weights.o = read.linear(prefix + "o", spec.hidden_size, heads.queries.times(mla->value_dim), kind_spec.o_bias);
    return weights;
  }
  const HeadSizes sizes = head_sizes(spec, kind);
  const bool has_keys = keys_of(spec, layer) < 0;
  const Slice queries = heads.queries.times(sizes.head_dim);
  const Slice keys = has_keys ? heads.kv.times(sizes.head_dim) : Slice(0);
  const Slice values = has_keys ? heads.kv.times(sizes.value_dim) : Slice(0);
  const Slice found = heads.queries.times(sizes.value_dim);
  const Slice rows = kind_spec.has_output_gate ? Slice::joined({queries, keys, values, found})
                     : has_keys                ? Slice::joined({queries, keys, values})
                                               : queries;
  weights.qkv = read.linear(prefix + "qkv", rows, inputs, kind_spec.qkv_bias);
  const bool has_images = spec.images && spec.images->own_attention;
  read_for_images(spec, read, weights.qkv, has_images, has_images && spec.images->own_bias, {rows});
  const auto norm = [&](const char* name, const Slice& all) {
    const bool is_shared = kind_spec.qk_norm == QkNorm::kHead;
    return NormStorage::load(read, prefix + name, is_shared ? Slice(sizes.head_dim) : all, spec.norm, false);
  };
  if (has_norm_weights(kind_spec)) {
    weights.q_norm = norm("q_norm", queries);
    if (has_keys) weights.k_norm = norm("k_norm", keys);
  }
  if (kind_spec.block_indexer && kind_spec.block_indexer->layers[static_cast<size_t>(layer)])
    weights.block_indexer = BlockIndexerWeights::load(spec, read, prefix + "block_indexer.");
  if (kind_spec.bias_reach > 0) {
    weights.distance_biases =
        read.vector(prefix + "distance_biases", heads.queries.times(2 * kind_spec.bias_reach + 1));
  }
  weights.o = read.linear(prefix + "o", spec.hidden_size, found, kind_spec.o_bias);
  read_for_images(spec, read, weights.o, has_images, false, {spec.hidden_size});
  return weights;
}

SelfAttention::SelfAttention(Operators& ops, const ModelSpec& spec, CacheType cache_type, int max_tokens)
    : spec_(spec),
      ropes_(ops, spec.ropes, max_tokens),
      kv_lens_(ops,
               spec.images && spec.images->whole_rows > 0 ? static_cast<size_t>(max_tokens) * sizeof(int32_t) : 0) {
  int row_width = 0;
  int found_width = 0;
  int unit_dim = 0;
  for (int number = 0; number < attention_count(spec); ++number) {
    const Kind& kind = kinds_.emplace_back(make_kind(ops, spec, number, cache_type, max_tokens));
    row_width = std::max(row_width, kind.row_width);
    found_width = std::max(found_width, kind.num_heads * kind.shape.value_dim);
    if (kind.spec.qk_norm == QkNorm::kUnit) unit_dim = std::max(unit_dim, kind.shape.key_dim);
    if (kind.spec.norms_values) unit_dim = std::max(unit_dim, kind.shape.value_dim);
    if (kind.spec.is_chunked && kv_lens_.size() > 0) {
      throw invalid_argument("attention.is_chunked is incompatible with images.whole_rows");
    }
  }
  if (!spec.attention.distance_buckets.empty()) {
    attend_by_distance_ = ops.operations().require<DisentangledAttention>();
  }
  if (spec.encoder) texts_.emplace(ops, spec, kinds_.front().shape, max_tokens);
  qkv_ = FloatRows(ops, max_tokens, row_width);
  attention_output_ = FloatRows(ops, max_tokens, found_width);
  if (const auto& mla = spec.attention.mla) {
    latent_.emplace(ops, spec, max_tokens);
    expanded_ = FloatRows(ops, max_tokens, spec.num_heads * mla->value_dim);
    if (mla->indexer && TokenIndexer::runs_on(ops.operations()))
      token_indexer_.emplace(ops, spec, cache_type, max_tokens);
  }
  if (spec.attention.block_indexer) block_indexer_.emplace(ops, spec, cache_type, max_tokens);
  unit_ = FloatRows(uploaded(ops, std::vector<float>(static_cast<size_t>(unit_dim), 1.0f)));
}

SelfAttention::Kind SelfAttention::make_kind(Operators& ops, const ModelSpec& spec, int kind, CacheType cache_type,
                                             int max_tokens) {
  const AttentionSpec& kind_spec = attention_kind(spec, kind);
  const CacheLayout shape = cache_shape(spec, kind, cache_type);
  const int heads = head_sizes(spec, kind).heads;
  const size_t factor_bytes = static_cast<size_t>(max_tokens) * sizeof(float);
  return {kind_spec,
          heads,
          shape,
          (heads + shape.num_kv_heads) * shape.key_dim + (kind_spec.mla ? 0 : shape.num_kv_heads * shape.value_dim) +
              (kind_spec.has_output_gate ? heads * shape.value_dim : 0),
          uploaded(ops, kind_spec.alibi_slopes),
          uploaded(ops, kind_spec.distance_buckets),
          Staged(ops, factor_bytes),
          Staged(ops, kind_spec.tempers_unrotated ? factor_bytes : 0)};
}

std::vector<CacheGroup> SelfAttention::cache_groups(const StepLimits& limits) const {
  if (texts_) return {};
  std::map<std::pair<int, int>, std::vector<int>> layers;  // by window, 0: none, and kind
  for (int layer = 0; layer < spec_.num_layers; ++layer) {
    if (!remembers(layer)) continue;
    const int window = window_of(spec_, layer);
    layers[{window < limits.context ? window : 0, attention_of(spec_, layer)}].push_back(layer);
  }
  std::vector<CacheGroup> groups;
  for (auto& [shared, group_layers] : layers) {
    const auto [window, number] = shared;
    const Kind& kind = kinds_[static_cast<size_t>(number)];
    CacheGroup& group = groups.emplace_back();
    group.kind = window > 0 ? MemoryKind::kWindow : MemoryKind::kPaged;
    group.window = window;
    group.is_chunked = window > 0 && kind.spec.is_chunked;
    group.block_len = limits.block_len;
    group.pieces = static_cast<int>(group_layers.size());
    group.piece_bytes = with_layout(kind.shape, limits.block_len).layer_bytes();
    group.layers = std::move(group_layers);
  }
  if (token_indexer_) groups.push_back(token_indexer_->cache_group(limits));
  if (block_indexer_) groups.push_back(block_indexer_->cache_group(limits));
  return groups;
}

void SelfAttention::project_distances(Operators& ops, const Weights& weights) {
  if (attend_by_distance_ == nullptr) return;
  const Kind& kind = kinds_.front();
  const int rows = spec_.attention.distance_buckets.back() + 1;
  const auto dim = static_cast<size_t>(kind.shape.key_dim);
  const FloatRows normed(ops, rows, spec_.hidden_size);
  const FloatRows projected(ops, rows, kind.row_width);
  ops.norm(weights.distance_norm.view, weights.distance_embedding.data.as<float>(), rows, spec_.hidden_size, normed);
  for (const LayerWeights& layer : weights.layers) {
    AlignedBuffer& made = distances_.emplace_back(float_buffer(ops, rows, 2 * kind.num_heads * kind.shape.key_dim));
    ops.linear(layer.attention.qkv.view, normed, rows, projected, false);
    ops.copy_heads({projected, rows, static_cast<size_t>(kind.row_width), 2 * kind.num_heads, dim, kind.shape.key_dim},
                   {made.as<float>(), rows, dim, 2 * kind.num_heads, rows * dim, kind.shape.key_dim});
  }
}

size_t SelfAttention::use_cache(Operators&, const CachePlan& plan, size_t first_group, std::byte* pages) {
  pages_ = pages;
  tables_.clear();
  memory_.assign(static_cast<size_t>(spec_.num_layers), {});
  if (texts_) return 0;
  const auto layers = std::views::iota(0, spec_.num_layers);
  const auto cached_layer_count = std::ranges::count_if(layers, [this](int layer) { return remembers(layer); });
  size_t index = first_group;
  for (std::ptrdiff_t done = 0; done < cached_layer_count; ++index) {
    const CacheGroup& group = plan.groups.at(index);
    for (int piece = 0; piece < group.pieces; ++piece) {
      memory_[static_cast<size_t>(group.layers[static_cast<size_t>(piece)])] = {
          static_cast<int>(tables_.size()) + piece / group.page_pieces, piece % group.page_pieces};
    }
    const CacheLayout& shape = kind_of(group.layers.front()).shape;
    add_tables(group, with_layout(shape, group.block_len, group.page_pieces, plan.page_bytes));
    done += group.pieces;
  }
  if (Indexer* chooser = indexer()) {
    const CacheGroup& group = plan.groups.at(index++);
    chooser->use_cache(group, plan.page_bytes, static_cast<int>(tables_.size()), pages);
    add_tables(group, chooser->layout());
  }
  for (const int layer : layers) {
    if (!has_keys(layer)) memory_[static_cast<size_t>(layer)] = memory_[static_cast<size_t>(keys_of(spec_, layer))];
  }
  return index - first_group;
}

void SelfAttention::add_tables(const CacheGroup& group, const CacheLayout& layout) {
  for (int page = 0; page < group.pages; ++page) {
    tables_.push_back({group.first_table + page, group.is_chunked ? group.window : 0, layout});
  }
}

void SelfAttention::begin_step(Operators& ops, const StepInput& input) {
  ropes_.stage(ops, input);
  if (block_indexer_) block_indexer_->begin_step(ops, input);
  for (Kind& kind : kinds_) fill_query_factors(ops, input, kind);
  for (size_t table = 0; table < tables_.size(); ++table) {
    std::vector<AttentionSpan> spans;
    spans.reserve(input.spans.size());
    for (const StepSpan& span : input.spans) {
      const std::vector<int32_t>& pages = (*span.tables)[static_cast<size_t>(tables_[table].number)];
      add_spans(span, pages.data(), tables_[table].layout.block_len, tables_[table].chunk, spans);
    }
    ops.set_spans({SpanUse::kTokens, static_cast<int>(table)}, std::move(spans), tables_[table].layout.block_len);
  }
  params_ = {};
  if (texts_) return texts_->begin_step(ops, input);
  params_.pool = pages_;
  if (kv_lens_.size() > 0) fill_kv_lens(ops, input);
}

void SelfAttention::fill_query_factors(Operators& ops, const StepInput& input, Kind& kind) {
  const AttentionSpec& spec = kind.spec;
  const auto trained = static_cast<float>(spec.logn_length);
  for (const StepSpan& span : input.spans) {
    for (int r = 0; r < span.count; ++r) {
      const auto tokens = static_cast<float>(span.first_position + r + 1);
      const float logn = trained > 1 ? std::max(1.0f, std::log(tokens) / std::log(trained)) : 1.0f;
      const int position = span.first_position + r;
      const float factor = spec.scale * logn;
      const bool is_unrotated = spec.tempers_unrotated;
      const float tempered = factor * temperature_of(spec, is_unrotated ? position + 1 : position);
      kind.query_factors.host<float>()[span.first_token + r] = is_unrotated ? factor : tempered;
      if (is_unrotated) kind.unrotated_factors.host<float>()[span.first_token + r] = tempered;
    }
  }
  kind.query_factors.upload(ops, input.tokens.size() * sizeof(float));
  if (spec.tempers_unrotated) kind.unrotated_factors.upload(ops, input.tokens.size() * sizeof(float));
}

// The tokens of an image see all of it, others up to themselves.
void SelfAttention::fill_kv_lens(Operators& ops, const StepInput& input) {
  for (const StepSpan& span : input.spans) {
    int32_t* kv_lens = kv_lens_.host<int32_t>() + span.first_token;
    std::iota(kv_lens, kv_lens + span.count, span.first_position + 1);
    for (const EmbeddingRange& range : span.embedded()) {
      const int begin = std::max(range.begin, span.first_position);
      std::fill_n(kv_lens + begin - span.first_position, range.end() - begin, range.end());
    }
  }
  kv_lens_.upload(ops, input.tokens.size() * sizeof(int32_t));
}

SelfAttention::Heads SelfAttention::heads(const Kind& kind, bool has_keys) const {
  const auto key_dim = static_cast<size_t>(kind.shape.key_dim);
  const auto value_dim = static_cast<size_t>(kind.shape.value_dim);
  const size_t width = has_keys ? static_cast<size_t>(kind.row_width) : kind.num_heads * key_dim;
  const int kv_heads = kind.shape.num_kv_heads;
  Heads heads{{qkv_, 0, width, kind.num_heads, key_dim, kind.shape.key_dim}, {}, {}, {}};
  if (!has_keys) return heads;
  auto* keys = qkv_ + kind.num_heads * key_dim;
  float* values = kind.spec.mla ? keys + kind.spec.mla->rope_dim : keys + kv_heads * key_dim;
  heads.keys = {keys, 0, width, kv_heads, key_dim, kind.shape.key_dim};
  heads.values = {values, 0, width, kv_heads, value_dim, kind.shape.value_dim};
  heads.gates = {values + kv_heads * value_dim, 0, width, kind.num_heads, value_dim, kind.shape.value_dim};
  return heads;
}

void SelfAttention::compile_latent(Program& program, int layer, const LatentWeights& weights, const Source& x) {
  const float* rows = x.rows.x.floats();
  program.add("queries, keys = latent projections(" + x.name + ")",
              [this, &weights, rows](ModelStep& step) { latent_->project(step, weights, rows, qkv_); });
  if (!weights.indexer || !token_indexer_) return;
  const RopeTable table = ropes_.table(spec_.layer_ropes[static_cast<size_t>(layer)]);
  program.add("chosen = indexer(" + x.name + ")", [this, layer, &weights, rows, table](ModelStep& step) {
    token_indexer_->choose(step, layer, *weights.indexer, rows, latent_->query_latents(), table);
  });
}

void SelfAttention::compile_projection(Program& program, int layer, const AttentionWeights& weights, const Source& x) {
  const Kind& kind = kind_of(layer);
  const Heads qkv = heads(kind, has_keys(layer));
  program.add(std::string(has_keys(layer) ? "queries, keys, values" : "queries") +
                  (kind.spec.has_output_gate ? ", gates" : "") + " = qkv(" + x.name + ")",
              [this, &weights, x = x.rows](ModelStep& step) { step.linear(weights.qkv, x, qkv_, false); });
  if (const float clip = kind.spec.qkv_clip; clip > 0) {
    program.add("clamp queries, keys, values", [this, clip, width = qkv.queries.row_stride](ModelStep& step) {
      step.ops.apply({.kind = Pointwise::Kind::kClamp, .limit = clip},
                     rows_view(qkv_, step.rows, static_cast<int>(width)));
    });
  }
  if (!has_keys(layer)) return;
  if (kind.spec.norms_values) {
    program.add("values = norm(values)",
                [this, qkv](ModelStep& step) { step.ops.norm_heads(unit_norm(), step.of(qkv.values)); });
  }
  if (kind.spec.value_scale != 1) {
    program.add("values *= " + std::to_string(kind.spec.value_scale),
                [&kind, qkv](ModelStep& step) { step.ops.scale(kind.spec.value_scale, step.of(qkv.values)); });
  }
}

void SelfAttention::compile_head_norms(Program& program, int layer, const AttentionWeights& weights) {
  const Kind& kind = kind_of(layer);
  const QkNorm norm = kind.spec.qk_norm;
  if (norm == QkNorm::kNone || (norm == QkNorm::kUnit && !rotates(layer))) return;
  const Heads qkv = heads(kind, has_keys(layer));
  program.add("queries = norm(queries)", [this, norm, &weights, qkv](ModelStep& step) {
    norm_heads(step.ops, norm, weights.q_norm, step.of(qkv.queries));
  });
  if (!has_keys(layer)) return;
  program.add("keys = norm(keys)", [this, norm, &weights, qkv](ModelStep& step) {
    norm_heads(step.ops, norm, weights.k_norm, step.of(qkv.keys));
  });
}

void SelfAttention::norm_heads(Operators& ops, QkNorm kind, const NormStorage& norm, const HeadsView& heads) const {
  if (kind == QkNorm::kHead) return ops.norm_heads(norm.view, heads);
  if (kind == QkNorm::kUnit) return ops.norm_heads(unit_norm(), heads);
  if (kind == QkNorm::kProjection) {
    return ops.norm_heads(norm.view, {heads.first, heads.rows, heads.row_stride, 1, 0, heads.heads * heads.head_dim});
  }
  for (int head = 0; head < heads.heads; ++head) {  // kEachHead
    NormWeight weight = norm.view;
    weight.weight += static_cast<size_t>(head) * heads.head_dim;
    ops.norm_heads(weight, {heads.head(0, head), heads.rows, heads.row_stride, 1, 0, heads.head_dim});
  }
}

void SelfAttention::set_params(int layer, const AttentionWeights& weights) {
  const Kind& kind = kind_of(layer);
  params_.num_heads = kind.num_heads;
  params_.softcap = kind.spec.softcap;
  params_.alibi_slopes = kind.alibi_slopes.as<float>();
  params_.window = window_of(spec_, layer);
  params_.sinks = weights.sinks.as<float>();
  params_.distance_biases = weights.distance_biases.as<float>();
  params_.bias_reach = kind.spec.bias_reach;
  if (texts_) return texts_->fill(params_.window, params_);
  const auto [table, piece] = memory_[static_cast<size_t>(layer)];
  params_.layout = tables_[static_cast<size_t>(table)].layout;
  params_.layer = piece;
  params_.set.table = table;
  const bool sees_ahead = kv_lens_.size() > 0 && !kind.spec.is_causal_in_images;
  params_.kv_lens = sees_ahead ? kv_lens_.device<int32_t>() : nullptr;
}

void SelfAttention::compile(Program& program, int layer, const AttentionWeights& weights, const Source& x,
                            const Target& y) {
  const Kind& kind = kind_of(layer);
  const bool has_keys = this->has_keys(layer);
  const Heads qkv = heads(kind, has_keys);
  RopeTable table = ropes_.table(spec_.layer_ropes[static_cast<size_t>(layer)]);
  if (latent_) {
    compile_latent(program, layer, *weights.latent, program.made(x));
  } else {
    const bool chooses = this->chooses(layer);
    const Source rows = chooses ? program.made(x) : x;
    if (chooses) {
      program.add("chosen = indexer(" + rows.name + ")",
                  [this, layer, &weights, table, input = rows.rows.x.floats()](ModelStep& step) {
                    block_indexer_->choose(step, layer, *weights.block_indexer, input, table);
                  });
    }
    compile_projection(program, layer, weights, rows);
  }
  // Keys and values are read where they are.
  if (attend_by_distance_ != nullptr) return compile_output(program, layer, qkv, weights, y);
  if (!latent_ && !kind.spec.norms_rotated) compile_head_norms(program, layer, weights);
  if (kind.spec.norms_rotated) {
    program.add("queries, keys = rope(queries, keys)", [has_keys, table, qkv](ModelStep& step) {
      step.ops.rope(table, step.of(qkv.queries), nullptr);
      if (has_keys) step.ops.rope(table, step.of(qkv.keys), nullptr);
    });
    compile_head_norms(program, layer, weights);
    table = {};
  }
  const bool uses_unrotated = !rotates(layer) && kind.unrotated_factors.size() > 0;
  const Staged& factors = uses_unrotated ? kind.unrotated_factors : kind.query_factors;
  const std::string rotated = table.pairs > 0 ? "rope(queries)" : "scaled queries";
  program.add(has_keys ? "queries = " + rotated + "; cache = " + (table.pairs > 0 ? "rope(keys)" : "keys") + ", values"
                       : "queries = " + rotated,
              [this, layer, &weights, has_keys, table, qkv, &factors](ModelStep& step) {
                set_params(layer, weights);
                const HeadsView queries = step.of(qkv.queries);
                if (!has_keys) return step.ops.rope(table, queries, factors.device<float>());
                step.ops.rope_and_write(table, params_, queries, factors.device<float>(), step.of(qkv.keys),
                                        step.of(qkv.values));
              });
  compile_output(program, layer, qkv, weights, y);
}

void SelfAttention::compile_distances(Program& program, int layer, const Heads& qkv) {
  const Kind& kind = kind_of(layer);
  program.add("attended = attend(queries), with products of distances", [this, &kind, layer, qkv](ModelStep& step) {
    const AlignedBuffer& made = distances_[static_cast<size_t>(layer)];
    const auto* queries = made.as<float>();
    const auto* keys = queries + made.size() / sizeof(float) / 2;
    const int reach = static_cast<int>(kind.spec.distance_buckets.size() / 2);
    attend_by_distance_(step.ops, {{},
                                   kind.spec.scale,
                                   step.of(qkv.queries),
                                   step.of(qkv.keys),
                                   step.of(qkv.values),
                                   queries,
                                   keys,
                                   kind.distance_buckets.as<int32_t>(),
                                   reach,
                                   attention_output_});
  });
}

void SelfAttention::compile_output(Program& program, int layer, const Heads& qkv, const AttentionWeights& weights,
                                   const Target& y) {
  const Kind& kind = kind_of(layer);
  const Indexer* chooser = chooses(layer) ? indexer() : nullptr;
  if (!latent_ && !kind.spec.has_output_gate && chooser == nullptr &&
      attend_by_distance_ == nullptr) {  // one operation of the device, where nothing comes between
    program.add(y.is() + "o(attend(queries))", [this, &weights, queries = qkv.queries, y](ModelStep& step) {
      float* attention_output = attention_output_;
      if (step.adapters == nullptr && weights.o.for_images.empty()) {
        return step.ops.project_attention(params_, step.of(queries), attention_output, weights.o.view, y.rows.data,
                                          y.accumulates);
      }
      step.ops.paged_attention(params_, step.of(queries), attention_output);
      step.linear(weights.o, attention_output, y.rows.data, y.accumulates);
    });
    return;
  }
  float* attention_output = attention_output_;
  if (chooser != nullptr) {
    program.add("attended = attend(queries), to those chosen", [this, chooser, queries = qkv.queries](ModelStep& step) {
      chooser->run_attention(step, params_, step.of(queries), attention_output_);
    });
  } else if (attend_by_distance_ != nullptr) {
    compile_distances(program, layer, qkv);
  } else {
    program.add("attended = attend(queries)", [this, queries = qkv.queries](ModelStep& step) {
      step.ops.paged_attention(params_, step.of(queries), attention_output_);
    });
  }
  if (latent_) {
    program.add("attended = expand(attended)", [this, &weights](ModelStep& step) {
      latent_->expand(step, *weights.latent, attention_output_, expanded_);
    });
    attention_output = expanded_;
  }
  if (kind.spec.has_output_gate) {
    const bool is_softplus = kind.spec.gates_by_softplus;
    const std::string label = std::string("attended *= ") + (is_softplus ? "softplus" : "sigmoid") + "(gates)";
    const Activation function = is_softplus ? Activation::kSoftplus : Activation::kSigmoid;
    program.add(label, [attention_output, function, gates = qkv.gates](ModelStep& step) {
      const auto width = static_cast<size_t>(gates.heads * gates.head_dim);
      step.ops.gate_heads(function, step.of(gates),
                          {attention_output, step.rows, width, gates.heads, gates.head_stride, gates.head_dim});
    });
  }
  program.add(y.is() + "o(attended)", [&weights, attention_output, y](ModelStep& step) {
    step.linear(weights.o, attention_output, y.rows.data, y.accumulates);
  });
}

}  // namespace turbomind
