#include "model/attention/latent_attention.h"

#include <algorithm>

namespace turbomind {

namespace {

// Uninitialised storage of a matrix that is never rounded.
LinearStorage empty_matrix(int out_features, int in_features, DType dtype) {
  LinearStorage storage;
  storage.data = AlignedBuffer(static_cast<size_t>(out_features) * in_features * byte_size(dtype));
  storage.view = {storage.data.as<void>(), format_of(dtype), out_features, in_features};
  return storage;
}

// Takes kv_up [heads (nope_dim + value_dim), kv_rank] apart.
template <class T>
void split_up(const LinearStorage& kv_up, int heads, const MlaSpec& mla, T* k_up, T* v_up) {
  const auto rank = static_cast<size_t>(mla.kv_rank);
  const auto nope = static_cast<size_t>(mla.nope_dim);
  const auto value = static_cast<size_t>(mla.value_dim);
  for (auto h = size_t{0}; h < static_cast<size_t>(heads); ++h) {
    const T* rows = kv_up.data.as<T>() + h * (nope + value) * rank;
    for (size_t i = 0; i < nope; ++i) {
      for (size_t c = 0; c < rank; ++c) k_up[(h * rank + c) * nope + i] = rows[i * rank + c];
    }
    std::copy_n(rows + nope * rank, value * rank, v_up + h * value * rank);
  }
}

}  // namespace

LatentWeights LatentWeights::load(const Shard& shard, const WeightReader& read, const std::string& prefix, int layer) {
  const ModelSpec& spec = shard.spec;
  const MlaSpec& mla = *spec.attention.mla;
  const Slice queries = shard.attention.front().queries.times(mla.nope_dim + mla.rope_dim);
  NormSpec norm = spec.norm;
  norm.eps = mla.norm_eps;
  LatentWeights weights;
  if (mla.q_rank > 0) {
    weights.q_down = read.linear(prefix + "q_down", mla.q_rank, spec.hidden_size, false);
    weights.q_down_norm = NormStorage::load(read, prefix + "q_down_norm", mla.q_rank, norm, false);
    weights.q = read.linear(prefix + "q_up", queries, mla.q_rank, false);
  } else {
    weights.q = read.linear(prefix + "q", queries, spec.hidden_size, false);
  }
  weights.kv_down = read.linear(prefix + "kv_down", mla.kv_rank + mla.rope_dim, spec.hidden_size, false);
  weights.kv_down_norm = NormStorage::load(read, prefix + "kv_down_norm", mla.kv_rank, norm, false);
  if (mla.has_gate) {
    const Slice values = shard.attention.front().queries.times(mla.value_dim);
    weights.gate = read.linear(prefix + "gate", values, spec.hidden_size, false);
  }
  if (mla.indexer && mla.indexer->layers[static_cast<size_t>(layer)]) {
    weights.indexer = TokenIndexerWeights::load(spec, read, prefix + "indexer.");
  }

  const DType dtype = read.options().dtype;
  const Slice ups = shard.attention.front().queries.times(mla.nope_dim + mla.value_dim);
  const LinearStorage kv_up = read.matrix(prefix + "kv_up.weight", ups, mla.kv_rank, dtype);
  weights.k_up = empty_matrix(spec.num_heads * mla.kv_rank, mla.nope_dim, dtype);
  weights.v_up = empty_matrix(spec.num_heads * mla.value_dim, mla.kv_rank, dtype);
  if (dtype == DType::kFloat32) {
    split_up(kv_up, spec.num_heads, mla, weights.k_up.data.as<float>(), weights.v_up.data.as<float>());
  } else {  // 16 bits of whatever kind are moved
    split_up(kv_up, spec.num_heads, mla, weights.k_up.data.as<bf16>(), weights.v_up.data.as<bf16>());
  }
  return weights;
}

LatentAttention::LatentAttention(Operators& ops, const ModelSpec& spec, int max_tokens)
    : head_linear_(ops.operations().require<HeadLinear>()),
      heads_(spec.num_heads),
      mla_(*spec.attention.mla),
      q_down_(ops, max_tokens, mla_.q_rank),
      q_(ops, max_tokens, heads_ * (mla_.nope_dim + mla_.rope_dim)),
      kv_down_(ops, max_tokens, mla_.kv_rank + mla_.rope_dim),
      gates_(ops, max_tokens, mla_.has_gate ? heads_ * mla_.value_dim : 0) {}

void LatentAttention::project(const StepContext& step, const LatentWeights& weights, const float* x, float* qk) {
  const auto rope = static_cast<size_t>(mla_.rope_dim);
  const auto rank = static_cast<size_t>(mla_.kv_rank);
  const size_t query_dim = mla_.nope_dim + rope;
  const size_t key_dim = rope + rank;
  const size_t width = (heads_ + 1) * key_dim;

  Operators& ops = step.ops;

  if (mla_.q_rank > 0) {
    ops.linear(weights.q_down.view, x, step.rows, q_down_, false);
    ops.norm(weights.q_down_norm.view, q_down_, step.rows, mla_.q_rank, q_down_);
    ops.linear(weights.q.view, q_down_, step.rows, q_, false);
  } else {
    ops.linear(weights.q.view, x, step.rows, q_, false);
  }
  if (mla_.has_gate) ops.linear(weights.gate.view, x, step.rows, gates_, false);
  ops.linear(weights.kv_down.view, x, step.rows, kv_down_, false);
  const HeadsView latents{kv_down_, step.rows, key_dim, 1, 0, mla_.kv_rank};
  ops.norm_heads(weights.kv_down_norm.view, latents);

  const HeadsView unrotated{q_, step.rows, heads_ * query_dim, heads_, query_dim, mla_.nope_dim};
  const HeadsView absorbed{qk + rope, step.rows, width, heads_, key_dim, mla_.kv_rank};
  head_linear_(ops, {weights.k_up.view, unrotated, absorbed});
  ops.copy_heads({q_ + mla_.nope_dim, step.rows, heads_ * query_dim, heads_, query_dim, mla_.rope_dim},
                 {qk, step.rows, width, heads_, key_dim, mla_.rope_dim});
  float* key = qk + heads_ * key_dim;
  ops.copy_heads({kv_down_ + rank, step.rows, key_dim, 1, 0, mla_.rope_dim},
                 {key, step.rows, width, 1, 0, mla_.rope_dim});
  ops.copy_heads(latents, {key + rope, step.rows, width, 1, 0, mla_.kv_rank});
}

void LatentAttention::expand(const StepContext& step, const LatentWeights& weights, float* latents, float* values) {
  const auto rank = static_cast<size_t>(mla_.kv_rank);
  const auto value_dim = static_cast<size_t>(mla_.value_dim);
  head_linear_(step.ops, {weights.v_up.view,
                          {latents, step.rows, heads_ * rank, heads_, rank, mla_.kv_rank},
                          {values, step.rows, heads_ * value_dim, heads_, value_dim, mla_.value_dim}});
  if (!mla_.has_gate) return;
  const int width = heads_ * mla_.value_dim;
  step.ops.gate_heads(Activation::kSigmoid, rows_view(gates_, step.rows, width), rows_view(values, step.rows, width));
}

}  // namespace turbomind
