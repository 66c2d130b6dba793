#include "model/attention/self_attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace turbomind {

namespace {

CacheLayout cache_shape(const ModelSpec& spec, CacheType type) {
  if (const auto& mla = spec.attention.mla) {
    return {type, spec.num_layers, 1, mla->rope_dim + mla->kv_rank, mla->kv_rank, 0};
  }
  return {type, spec.num_layers, spec.num_kv_heads, spec.head_dim, spec.head_dim, 0};
}

}  // namespace

SelfAttention::SelfAttention(Operators& ops, const ModelSpec& spec, CacheType cache_type, int max_rows)
    : spec_(spec),
      shape_(cache_shape(spec, cache_type)),
      ropes_(ops, spec.ropes, max_rows),
      row_width_((spec.num_heads + shape_.num_kv_heads) * shape_.key_dim +
                 (spec.attention.mla ? 0 : shape_.num_kv_heads * shape_.value_dim)),
      qkv_(float_buffer(ops, max_rows, row_width_)),
      attended_(float_buffer(ops, max_rows, spec.num_heads * shape_.value_dim)),
      query_factors_(ops, static_cast<size_t>(max_rows) * sizeof(float)),
      sights_(ops,
              spec.pictures && spec.pictures->whole_rows > 0 ? static_cast<size_t>(max_rows) * sizeof(int32_t) : 0) {
  if (const auto& mla = spec.attention.mla) {
    latent_.emplace(ops, spec, max_rows);
    expanded_ = float_buffer(ops, max_rows, spec.num_heads * mla->value_dim);
  }
  if (const auto& slopes = spec.attention.alibi_slopes; !slopes.empty()) {
    alibi_slopes_ = ops.allocate(slopes.size() * sizeof(float));
    ops.upload(slopes.data(), alibi_slopes_.size(), alibi_slopes_.as<void>());
  }
}

CacheLayout SelfAttention::layout(int block_len) const {
  CacheLayout layout = shape_;
  layout.block_len = block_len;
  return layout;
}

void SelfAttention::allocate_cache(Operators& ops, const CacheSize& size) {
  layout_ = layout(size.block_len);
  cache_ = ops.allocate(layout_.block_bytes() * static_cast<size_t>(size.block_count), MemoryUse::kCache);
  host_cache_ = ops.allocate_staging(layout_.block_bytes() * static_cast<size_t>(size.host_block_count));
}

void SelfAttention::move_blocks(Operators& ops, const std::vector<BlockMove>& moves) {
  const size_t bytes = layout_.block_bytes();
  const auto own_count = static_cast<int32_t>(cache_.size() / bytes);
  const auto own = [&](int32_t block) { return cache_.as<std::byte>() + static_cast<size_t>(block) * bytes; };
  const auto of_host = [&](int32_t block) {
    return host_cache_.as<std::byte>() + static_cast<size_t>(block - own_count) * bytes;
  };
  for (const auto [from, to] : moves) {
    if (to >= own_count) {
      ops.download_later(own(from), bytes, of_host(to));
    } else {
      ops.upload(of_host(from), bytes, own(to));
    }
  }
}

void SelfAttention::begin_step(Operators& ops, const StepInput& input) {
  ropes_.stage(ops, input);
  fill_query_factors(ops, input);
  std::vector<AttentionSpan> spans;
  spans.reserve(input.spans.size());
  for (const StepSpan& span : input.spans) {
    spans.push_back({span.first_row, span.count, span.first_position, span.blocks->data()});
  }
  ops.set_spans(SpanSet::kTokens, std::move(spans), layout_.block_len);
  params_ = {};
  params_.layout = layout_;
  params_.pool = cache_.as<std::byte>();
  params_.num_heads = spec_.num_heads;
  params_.softcap = spec_.attention.softcap;
  params_.alibi_slopes = alibi_slopes_.as<float>();
  if (sights_.size() > 0) {
    fill_sights(ops, input);
    params_.sights = sights_.device<int32_t>();
  }
}

void SelfAttention::fill_query_factors(Operators& ops, const StepInput& input) {
  const auto trained = static_cast<float>(spec_.attention.logn_length);
  for (const StepSpan& span : input.spans) {
    for (int r = 0; r < span.count; ++r) {
      const auto tokens = static_cast<float>(span.first_position + r + 1);
      const float logn = trained > 1 ? std::max(1.0f, std::log(tokens) / std::log(trained)) : 1.0f;
      query_factors_.host<float>()[span.first_row + r] = spec_.attention.scale * logn;
    }
  }
  query_factors_.upload(ops, input.tokens.size() * sizeof(float));
}

// The tokens of a picture see all of it, others up to themselves.
void SelfAttention::fill_sights(Operators& ops, const StepInput& input) {
  for (const StepSpan& span : input.spans) {
    int32_t* sights = sights_.host<int32_t>() + span.first_row;
    std::iota(sights, sights + span.count, span.first_position + 1);
    for (const EmbeddingRange& range : span.embeddings) {
      const int begin = std::max(range.begin, span.first_position);
      std::fill_n(sights + begin - span.first_position, range.end() - begin, range.end());
    }
  }
  sights_.upload(ops, input.tokens.size() * sizeof(int32_t));
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
          {values, rows, width, kv_heads, value_dim, shape_.value_dim}};
}

void SelfAttention::project(const StepContext& step, const AttentionWeights& weights, const LinearInput& x,
                            const Heads& heads) {
  auto* qkv = qkv_.as<float>();
  step.linear(weights.qkv, x, qkv, false);
  if (const float clip = spec_.attention.qkv_clip; clip > 0) step.ops.clamp(clip, step.rows, row_width_, qkv);
  if (spec_.attention.qk_norm == QkNorm::kNone) return;
  const bool is_per_head = spec_.attention.qk_norm == QkNorm::kHead;
  for (const auto& [own, norm] : {std::pair(heads.queries, &weights.q_norm), std::pair(heads.keys, &weights.k_norm)}) {
    const HeadsView all{own.first, own.rows, own.row_stride, 1, 0, own.heads * own.head_dim};
    step.ops.norm_heads(norm->view, is_per_head ? own : all);
  }
}

void SelfAttention::run(const StepContext& step, int layer, const AttentionWeights& weights, const LinearInput& x,
                        float* y, bool accumulate) {
  const Heads own = heads(step.rows);
  if (latent_) {
    latent_->project(step, *weights.latent, step.ops.make_rows(x, step.rows, spec_.hidden_size), qkv_.as<float>());
  } else {
    project(step, weights, x, own);
  }
  const RopeTable table = ropes_.table(spec_.layer_ropes[static_cast<size_t>(layer)]);
  params_.layer = layer;
  params_.window = spec_.attention.windows[static_cast<size_t>(layer)];
  params_.sinks = weights.sinks.as<float>();
  step.ops.rope_and_write(table, params_, own.queries, query_factors_.device<float>(), own.keys, own.values);
  auto* attended = attended_.as<float>();
  if (!latent_ && step.adapters == nullptr) {
    return step.ops.project_attention(params_, own.queries, attended, weights.o.view, y, accumulate);
  }
  step.ops.paged_attention(params_, own.queries, attended);
  if (latent_) {
    latent_->expand(step, *weights.latent, attended, expanded_.as<float>());
    attended = expanded_.as<float>();
  }
  step.linear(weights.o, attended, y, accumulate);
}

}  // namespace turbomind
