#include "model/self_attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/norm.h"
#include "kernels/rope.h"

namespace turbomind {

SelfAttention::SelfAttention(const ModelSpec& spec, CacheType cache_type, int max_rows)
    : spec_(spec),
      cache_type_(cache_type),
      ropes_(spec.ropes, max_rows),
      qkv_(float_buffer(max_rows, (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim)),
      attended_(float_buffer(max_rows, spec.num_heads * spec.head_dim)),
      query_factors_(float_buffer(max_rows, 1)) {}

CacheLayout SelfAttention::layout(int block_len) const {
  return {cache_type_, spec_.num_layers, spec_.num_kv_heads, spec_.head_dim, spec_.head_dim, block_len};
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

void SelfAttention::run(const StepContext& step, int layer, const AttentionWeights& weights, const float* x, float* y,
                        bool accumulate) {
  auto* qkv = qkv_.as<float>();
  auto* attended = attended_.as<float>();
  const auto dim = static_cast<size_t>(spec_.head_dim);
  const size_t width = (spec_.num_heads + 2 * spec_.num_kv_heads) * dim;
  const HeadsView queries{qkv, step.rows, width, spec_.num_heads, dim, spec_.head_dim};
  const HeadsView keys{qkv + spec_.num_heads * dim, step.rows, width, spec_.num_kv_heads, dim, spec_.head_dim};
  const HeadsView values{
      keys.first + spec_.num_kv_heads * dim, step.rows, width, spec_.num_kv_heads, dim, spec_.head_dim};

  linear(step.pool, step.scratch, weights.qkv.view, x, step.rows, qkv, false);
  if (const float clip = spec_.attention.qkv_clip; clip > 0) {
    for (size_t i = 0; i < step.rows * width; ++i) qkv[i] = std::clamp(qkv[i], -clip, clip);
  }
  if (spec_.attention.qk_norm != QkNorm::kNone) {
    const bool is_per_head = spec_.attention.qk_norm == QkNorm::kHead;
    for (const auto& [heads, norm] : {std::pair(queries, &weights.q_norm), std::pair(keys, &weights.k_norm)}) {
      const int size = heads.heads * heads.head_dim;
      norm_heads(step.pool, norm->view, is_per_head ? heads : HeadsView{heads.first, step.rows, width, 1, 0, size});
    }
  }
  const RopeTable table = ropes_.table(spec_.layer_ropes[static_cast<size_t>(layer)]);
  rope(step.pool, table, queries, query_factors_.as<float>());
  rope(step.pool, table, keys, nullptr);
  params_.layer = layer;
  params_.window = spec_.attention.windows[static_cast<size_t>(layer)];
  params_.sinks = weights.sinks.as<float>();
  write_cache(step.pool, params_, keys, values);
  paged_attention(step.pool, params_, queries, workspace_.as<float>(), attended);
  linear(step.pool, step.scratch, weights.o.view, attended, step.rows, y, accumulate);
}

}  // namespace turbomind
