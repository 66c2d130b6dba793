#include "model/attention/self_attention.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace turbomind {

namespace {

CacheLayout cache_shape(const ModelSpec& spec, CacheType type) {
  if (const auto& mla = spec.attention.mla) {
    return {type, spec.num_layers, 1, mla->rope_dim + mla->kv_rank, mla->kv_rank, 0};
  }
  return {type, spec.num_layers, spec.num_kv_heads, spec.head_dim, spec.head_dim, 0};
}

// What queries are multiplied by because of their position.
float temperature_of(const AttentionSpec& spec, int position) {
  if (spec.temperature_length == 0) return 1;
  return 1 + spec.temperature_scale * std::log(1.0f + static_cast<float>(position / spec.temperature_length));
}

// Rows of a sequence that see chunks are a span for each, whose positions and blocks are counted from its begin.
void add_spans(const StepSpan& span, const int32_t* blocks, int block_len, int chunk,
               std::vector<AttentionSpan>& spans) {
  if (chunk == 0) return spans.push_back({span.first_row, span.count, span.first_position, blocks});
  for (int row = 0; row < span.count;) {
    const int begin = (span.first_position + row) / chunk * chunk;
    const int place = span.first_position + row - begin;
    const int count = std::min(span.count - row, chunk - place);
    spans.push_back({span.first_row + row, count, place, blocks + begin / block_len});
    row += count;
  }
}

}  // namespace

SelfAttention::SelfAttention(Operators& ops, const ModelSpec& spec, CacheType cache_type, int max_rows)
    : spec_(spec),
      shape_(cache_shape(spec, cache_type)),
      ropes_(ops, spec.ropes, max_rows),
      row_width_((spec.num_heads + shape_.num_kv_heads) * shape_.key_dim +
                 (spec.attention.mla ? 0 : shape_.num_kv_heads * shape_.value_dim) +
                 (spec.attention.has_output_gate ? spec.num_heads * shape_.value_dim : 0)),
      value_factor_(ops, max_rows, spec.attention.value_scale),
      qkv_(float_buffer(ops, max_rows, row_width_)),
      attended_(float_buffer(ops, max_rows, spec.num_heads * shape_.value_dim)),
      query_factors_(ops, static_cast<size_t>(max_rows) * sizeof(float)),
      unrotated_factors_(ops, spec.attention.tempers_unrotated ? static_cast<size_t>(max_rows) * sizeof(float) : 0),
      kv_lens_(ops, spec.images && spec.images->whole_rows > 0 ? static_cast<size_t>(max_rows) * sizeof(int32_t) : 0) {
  if (const auto& mla = spec.attention.mla) {
    latent_.emplace(ops, spec, max_rows);
    expanded_ = float_buffer(ops, max_rows, spec.num_heads * mla->value_dim);
  }
  if (const auto& slopes = spec.attention.alibi_slopes; !slopes.empty()) {
    alibi_slopes_ = ops.allocate(slopes.size() * sizeof(float));
    ops.upload(slopes.data(), alibi_slopes_.size(), alibi_slopes_.as<void>());
  }
  if (spec.attention.is_chunked && kv_lens_.size() > 0) {
    throw invalid_argument("attention.is_chunked cannot be had with images.whole_rows");
  }
  if (spec.attention.qk_norm == QkNorm::kUnit) {
    const std::vector<float> ones(static_cast<size_t>(spec.head_dim), 1.0f);
    unit_ = float_buffer(ops, 1, spec.head_dim);
    ops.upload(ones.data(), unit_.size(), unit_.as<void>());
  }
}

std::vector<CacheGroup> SelfAttention::cache_groups(const StepLimits& limits) const {
  std::map<int, std::vector<int>> layers;  // by window, 0: none
  for (int layer = 0; layer < spec_.num_layers; ++layer) {
    if (!has_attention(spec_, layer)) continue;
    const int window = spec_.attention.windows[static_cast<size_t>(layer)];
    layers[window < limits.context ? window : 0].push_back(layer);
  }
  CacheLayout of_one = shape_;
  of_one.block_len = limits.block_len;
  std::vector<CacheGroup> groups;
  for (auto& [window, own] : layers) {
    CacheGroup& group = groups.emplace_back();
    group.kind = window > 0 ? MemoryKind::kWindow : MemoryKind::kPaged;
    group.window = window;
    group.is_chunked = window > 0 && spec_.attention.is_chunked;
    group.block_len = limits.block_len;
    group.pieces = static_cast<int>(own.size());
    group.piece_bytes = of_one.layer_bytes();
    group.layers = std::move(own);
  }
  return groups;
}

void SelfAttention::use_cache(const CachePlan& plan, int first_group, std::byte* pages) {
  pages_ = pages;
  tables_.clear();
  memory_.assign(static_cast<size_t>(spec_.num_layers), {});
  const auto own = static_cast<size_t>(attention_layer_count(spec_));
  size_t placed = 0;
  for (auto index = static_cast<size_t>(first_group); placed < own; ++index) {
    const CacheGroup& group = plan.groups.at(index);
    for (int piece = 0; piece < group.pieces; ++piece) {
      LayerMemory& memory = memory_[static_cast<size_t>(group.layers[static_cast<size_t>(piece)])];
      memory = {static_cast<int>(tables_.size()) + piece / group.page_pieces, piece % group.page_pieces};
    }
    for (int page = 0; page < group.pages; ++page) {
      CacheLayout layout = shape_;
      layout.num_layers = group.page_pieces;
      layout.block_len = group.block_len;
      layout.page_bytes = plan.page_bytes;
      tables_.push_back({group.first_table + page, group.is_chunked ? group.window : 0, layout});
    }
    placed += group.layers.size();
  }
}

void SelfAttention::begin_step(Operators& ops, const StepInput& input) {
  ropes_.stage(ops, input);
  fill_query_factors(ops, input);
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
  params_.pool = pages_;
  params_.num_heads = spec_.num_heads;
  params_.softcap = spec_.attention.softcap;
  params_.alibi_slopes = alibi_slopes_.as<float>();
  if (kv_lens_.size() > 0) {
    fill_kv_lens(ops, input);
    params_.kv_lens = kv_lens_.device<int32_t>();
  }
}

void SelfAttention::fill_query_factors(Operators& ops, const StepInput& input) {
  const auto trained = static_cast<float>(spec_.attention.logn_length);
  for (const StepSpan& span : input.spans) {
    for (int r = 0; r < span.count; ++r) {
      const auto tokens = static_cast<float>(span.first_position + r + 1);
      const float logn = trained > 1 ? std::max(1.0f, std::log(tokens) / std::log(trained)) : 1.0f;
      const int position = span.first_position + r;
      const float factor = spec_.attention.scale * logn;
      const bool is_unrotated = spec_.attention.tempers_unrotated;
      const float tempered = factor * temperature_of(spec_.attention, is_unrotated ? position + 1 : position);
      query_factors_.host<float>()[span.first_row + r] = is_unrotated ? factor : tempered;
      if (is_unrotated) unrotated_factors_.host<float>()[span.first_row + r] = tempered;
    }
  }
  query_factors_.upload(ops, input.tokens.size() * sizeof(float));
  if (spec_.attention.tempers_unrotated) unrotated_factors_.upload(ops, input.tokens.size() * sizeof(float));
}

// The tokens of an image see all of it, others up to themselves.
void SelfAttention::fill_kv_lens(Operators& ops, const StepInput& input) {
  for (const StepSpan& span : input.spans) {
    int32_t* kv_lens = kv_lens_.host<int32_t>() + span.first_row;
    std::iota(kv_lens, kv_lens + span.count, span.first_position + 1);
    for (const EmbeddingRange& range : span.embeddings) {
      const int begin = std::max(range.begin, span.first_position);
      std::fill_n(kv_lens + begin - span.first_position, range.end() - begin, range.end());
    }
  }
  kv_lens_.upload(ops, input.tokens.size() * sizeof(int32_t));
}

SelfAttention::Heads SelfAttention::heads(int rows) const {
  const auto key_dim = static_cast<size_t>(shape_.key_dim);
  const auto value_dim = static_cast<size_t>(shape_.value_dim);
  const auto width = static_cast<size_t>(row_width_);
  const int kv_heads = shape_.num_kv_heads;
  auto* keys = qkv_.as<float>() + spec_.num_heads * key_dim;
  float* values = spec_.attention.mla ? keys + spec_.attention.mla->rope_dim : keys + kv_heads * key_dim;
  return {{qkv_.as<float>(), rows, width, spec_.num_heads, key_dim, shape_.key_dim},
          {keys, rows, width, kv_heads, key_dim, shape_.key_dim},
          {values, rows, width, kv_heads, value_dim, shape_.value_dim},
          {values + kv_heads * value_dim, rows, width, spec_.num_heads, value_dim, shape_.value_dim}};
}

void SelfAttention::project(const StepContext& step, int layer, const AttentionWeights& weights, const LinearInput& x,
                            const Heads& heads) {
  auto* qkv = qkv_.as<float>();
  step.linear(weights.qkv, x, qkv, false);
  if (const float clip = spec_.attention.qkv_clip; clip > 0) step.ops.clamp(clip, step.rows, row_width_, qkv);
  if (!spec_.attention.norms_rotated) norm_queries_and_keys(step.ops, layer, weights, heads);
}

void SelfAttention::norm_queries_and_keys(Operators& ops, int layer, const AttentionWeights& weights,
                                          const Heads& heads) const {
  for (const auto& [own, norm] : {std::pair(heads.queries, &weights.q_norm), std::pair(heads.keys, &weights.k_norm)}) {
    switch (spec_.attention.qk_norm) {
      case QkNorm::kNone:
        break;
      case QkNorm::kHead:
        ops.norm_heads(norm->view, own);
        break;
      case QkNorm::kProjection:
        ops.norm_heads(norm->view, {own.first, own.rows, own.row_stride, 1, 0, own.heads * own.head_dim});
        break;
      case QkNorm::kEachHead:
        for (int head = 0; head < own.heads; ++head) {
          NormWeight weight = norm->view;
          weight.weight += static_cast<size_t>(head) * own.head_dim;
          ops.norm_heads(weight, {own.head(0, head), own.rows, own.row_stride, 1, 0, own.head_dim});
        }
        break;
      case QkNorm::kUnit:
        if (rotates(layer)) ops.norm_heads({NormKind::kRms, spec_.norm.eps, unit_.as<float>(), nullptr}, own);
    }
  }
}

void SelfAttention::run(const StepContext& step, int layer, const AttentionWeights& weights, const LinearInput& x,
                        float* y, bool accumulate) {
  const Heads own = heads(step.rows);
  if (latent_) {
    latent_->project(step, *weights.latent, step.ops.make_rows(x, step.rows, spec_.hidden_size), qkv_.as<float>());
  } else {
    project(step, layer, weights, x, own);
    value_factor_.apply(step.ops, own.values);
  }
  RopeTable table = ropes_.table(spec_.layer_ropes[static_cast<size_t>(layer)]);
  if (spec_.attention.norms_rotated) {
    step.ops.rope(table, own.queries, nullptr);
    step.ops.rope(table, own.keys, nullptr);
    norm_queries_and_keys(step.ops, layer, weights, own);
    table = {};
  }
  const LayerMemory& memory = memory_[static_cast<size_t>(layer)];
  params_.layout = tables_[static_cast<size_t>(memory.table)].layout;
  params_.layer = memory.piece;
  params_.set.table = memory.table;
  params_.window = spec_.attention.windows[static_cast<size_t>(layer)];
  params_.sinks = weights.sinks.as<float>();
  const Staged& factors = rotates(layer) || unrotated_factors_.size() == 0 ? query_factors_ : unrotated_factors_;
  step.ops.rope_and_write(table, params_, own.queries, factors.device<float>(), own.keys, own.values);
  auto* attended = attended_.as<float>();
  if (!latent_ && !spec_.attention.has_output_gate && step.adapters == nullptr) {
    return step.ops.project_attention(params_, own.queries, attended, weights.o.view, y, accumulate);
  }
  step.ops.paged_attention(params_, own.queries, attended);
  if (latent_) {
    latent_->expand(step, *weights.latent, attended, expanded_.as<float>());
    attended = expanded_.as<float>();
  }
  if (spec_.attention.has_output_gate) {
    const HeadsView& gates = own.gates;
    const auto width = static_cast<size_t>(gates.heads * gates.head_dim);
    step.ops.gate_heads(GateKind::kSigmoid, gates,
                        {attended, step.rows, width, gates.heads, gates.head_stride, gates.head_dim});
  }
  step.linear(weights.o, attended, y, accumulate);
}

}  // namespace turbomind
