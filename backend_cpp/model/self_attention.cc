#include "model/self_attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/norm.h"
#include "kernels/rope.h"

namespace turbomind {

namespace {

CacheLayout cache_shape(const ModelSpec& spec, CacheType type) {
  if (const auto& mla = spec.attention.mla) {
    return {type, spec.num_layers, 1, mla->rope_dim + mla->kv_rank, mla->kv_rank, 0};
  }
  return {type, spec.num_layers, spec.num_kv_heads, spec.head_dim, spec.head_dim, 0};
}

}  // namespace

SelfAttention::SelfAttention(const ModelSpec& spec, CacheType cache_type, int max_rows)
    : spec_(spec),
      shape_(cache_shape(spec, cache_type)),
      ropes_(spec.ropes, max_rows),
      row_width_((spec.num_heads + shape_.num_kv_heads) * shape_.key_dim +
                 (spec.attention.mla ? 0 : shape_.num_kv_heads * shape_.value_dim)),
      qkv_(float_buffer(max_rows, row_width_)),
      attended_(float_buffer(max_rows, spec.num_heads * shape_.value_dim)),
      query_factors_(float_buffer(max_rows, 1)) {
  if (const auto& mla = spec.attention.mla) {
    latent_.emplace(spec, max_rows);
    expanded_ = float_buffer(max_rows, spec.num_heads * mla->value_dim);
  }
}

CacheLayout SelfAttention::layout(int block_len) const {
  CacheLayout layout = shape_;
  layout.block_len = block_len;
  return layout;
}

void SelfAttention::allocate_cache(int block_count, int block_len) {
  layout_ = layout(block_len);
  cache_ = AlignedBuffer(layout_.block_bytes() * static_cast<size_t>(block_count));
}

void SelfAttention::begin_step(const StepInput& input) {
  ropes_.fill(input);
  fill_query_factors(input);
  spans_.clear();
  for (const StepSpan& span : input.spans) {
    spans_.push_back({span.first_row, span.count, span.first_position, span.blocks->data()});
  }
  params_ = {};
  params_.layout = layout_;
  params_.pool = cache_.as<std::byte>();
  params_.num_heads = spec_.num_heads;
  params_.spans = spans_.data();
  params_.span_count = static_cast<int>(spans_.size());
  params_.softcap = spec_.attention.softcap;
  if (!spec_.attention.alibi_slopes.empty()) params_.alibi_slopes = spec_.attention.alibi_slopes.data();
  const size_t workspace_bytes = attention_workspace_floats(params_) * sizeof(float);
  if (workspace_.size() < workspace_bytes) workspace_ = AlignedBuffer(workspace_bytes);
}

void SelfAttention::fill_query_factors(const StepInput& input) {
  const auto trained = static_cast<float>(spec_.attention.logn_length);
  for (const StepSpan& span : input.spans) {
    for (int r = 0; r < span.count; ++r) {
      const auto tokens = static_cast<float>(span.first_position + r + 1);
      const float logn = trained > 1 ? std::max(1.0f, std::log(tokens) / std::log(trained)) : 1.0f;
      query_factors_.as<float>()[span.first_row + r] = spec_.attention.scale * logn;
    }
  }
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

void SelfAttention::project(const StepContext& step, const AttentionWeights& weights, const float* x,
                            const Heads& heads) {
  auto* qkv = qkv_.as<float>();
  linear(step.pool, step.scratch, weights.qkv.view, x, step.rows, qkv, false);
  if (const float clip = spec_.attention.qkv_clip; clip > 0) {
    const size_t count = static_cast<size_t>(step.rows) * row_width_;
    for (size_t i = 0; i < count; ++i) qkv[i] = std::clamp(qkv[i], -clip, clip);
  }
  if (spec_.attention.qk_norm == QkNorm::kNone) return;
  const bool is_per_head = spec_.attention.qk_norm == QkNorm::kHead;
  for (const auto& [own, norm] : {std::pair(heads.queries, &weights.q_norm), std::pair(heads.keys, &weights.k_norm)}) {
    const HeadsView all{own.first, own.rows, own.row_stride, 1, 0, own.heads * own.head_dim};
    norm_heads(step.pool, norm->view, is_per_head ? own : all);
  }
}

void SelfAttention::run(const StepContext& step, int layer, const AttentionWeights& weights, const float* x, float* y,
                        bool accumulate) {
  const Heads own = heads(step.rows);
  if (latent_) {
    latent_->project(step, *weights.latent, x, qkv_.as<float>());
  } else {
    project(step, weights, x, own);
  }
  const RopeTable table = ropes_.table(spec_.layer_ropes[static_cast<size_t>(layer)]);
  rope(step.pool, table, own.queries, query_factors_.as<float>());
  rope(step.pool, table, own.keys, nullptr);
  params_.layer = layer;
  params_.window = spec_.attention.windows[static_cast<size_t>(layer)];
  params_.sinks = weights.sinks.as<float>();
  write_cache(step.pool, params_, own.keys, own.values);
  auto* attended = attended_.as<float>();
  paged_attention(step.pool, params_, own.queries, workspace_.as<float>(), attended);
  if (latent_) {
    latent_->expand(step, *weights.latent, attended, expanded_.as<float>());
    attended = expanded_.as<float>();
  }
  linear(step.pool, step.scratch, weights.o.view, attended, step.rows, y, accumulate);
}

}  // namespace turbomind
