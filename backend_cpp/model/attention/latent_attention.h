// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, 2.1) in its absorbed form.
//
// A token's keys and values of all heads come out of one vector, the latent c: k_h = [W_UK,h c, r] and v_h = W_UV,h c,
// where r is a rotated key that all heads share. So q_h.k_h = (W_UK,h^T q_nope,h).c + q_rope,h.r, and a head's output
// is W_UV,h times the weighted sum of latents. Attention therefore runs with one key/value head,
//   key [r, c]   rope_dim + kv_rank     value c   kv_rank
// and only these are cached. The rotated part is first, where RoPE finds it in any other model too.
#pragma once

#include <optional>
#include <string>

#include "kernels/head_linear.h"
#include "model/attention/indexer.h"
#include "model/norm_storage.h"
#include "model/spec/model_spec.h"
#include "model/spec/shard.h"
#include "model/step_context.h"
#include "weights/weight_reader.h"

namespace turbomind {

struct LatentWeights {
  LinearStorage q_down;  // [q_rank, hidden]; empty without q_rank, like its norm
  NormStorage q_down_norm;
  LinearStorage q;        // [heads (nope_dim + rope_dim), q_rank or hidden]
  LinearStorage kv_down;  // [kv_rank + rope_dim, hidden]
  NormStorage kv_down_norm;
  LinearStorage k_up;                          // W_UK,h^T of each head: [heads kv_rank, nope_dim]; never rounded
  LinearStorage v_up;                          // W_UV,h of each head: [heads value_dim, kv_rank]; never rounded
  LinearStorage gate;                          // [heads value_dim, hidden], or empty
  std::optional<TokenIndexerWeights> indexer;  // of a layer that chooses what it attends to
  WEIGHT_MEMBERS(q_down, q_down_norm, q, kv_down, kv_down_norm, k_up, v_up, gate, indexer)

  // `prefix` is all of the tensors' names before "q_down", "kv_down", ...
  static LatentWeights load(const Shard& shard, const WeightReader& read, const std::string& prefix, int layer);
};

class LatentAttention {
 public:
  LatentAttention(Operators& ops, const ModelSpec& spec, int max_tokens);

  // Fills qk [rows, (heads + 1) (rope_dim + kv_rank)], queries and the key, of x [rows, hidden]; not rotated yet. The
  // value is the key's latent. Keeps the gate of what `expand` gives.
  void project(const StepContext& step, const LatentWeights& weights, const float* x, float* qk);
  // [rows, q_rank]: what queries come out of, of the last call of project.
  const float* query_latents() const { return q_down_; }

  // values [rows, heads value_dim] of attention's sums of latents [rows, heads kv_rank].
  void expand(const StepContext& step, const LatentWeights& weights, float* latents, float* values);

 private:
  OperationFunction<HeadLinear> head_linear_;
  int heads_;
  MlaSpec mla_;
  FloatRows q_down_;   // [max_tokens, q_rank]
  FloatRows q_;        // [max_tokens, heads (nope_dim + rope_dim)]
  FloatRows kv_down_;  // [max_tokens, kv_rank + rope_dim]
  FloatRows gates_;    // [max_tokens, heads value_dim], where there are any
};

}  // namespace turbomind
