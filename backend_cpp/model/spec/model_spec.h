// Decoder description: the fields of model_spec_fields.h, read from spec.json (docs/internals/interfaces.md), and
// what follows from them. lmdeploy/turbomind/spec/ declares and explains every field, and checks them all.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "model/spec/model_spec_fields.h"

namespace turbomind {

// Throws Error naming the file and the first thing wrong in it.
ModelSpec read_model_spec(const std::string& path);

// Whether linear layers have further weights for rows of images.
inline bool has_own_image_weights(const ModelSpec& spec) {
  return spec.images && (spec.images->own_attention || spec.images->own_mlp || spec.images->low_rank > 0);
}
// Layers that look at images by cross-attention; num_layers does not count them.
inline int cross_layer_count(const ModelSpec& spec) {
  return spec.images ? static_cast<int>(spec.images->cross_layers.size()) : 0;
}

// Of a row: one a token of the vocabulary, but for some heads.
inline int logit_count(const ModelSpec& spec) {
  return spec.head && !spec.head->tokens.empty() ? static_cast<int>(spec.head->tokens.size()) : spec.vocab_size;
}

// Numbers that a head takes of a row of the model.
inline int width_of(const HeadSpec& head) {
  return head.target_hidden_size * static_cast<int>(std::max<size_t>(1, head.target_layers.size()));
}

// Whether a head has a norm before its first layer's attention and one after its last layer.
inline bool has_outer_norms(const HeadSpec& head) {
  return head.kind != HeadKind::kEagle;
}

// Whether rows go through a norm after the last layer.
inline bool has_final_norm(const ModelSpec& spec) {
  return (!spec.head || has_outer_norms(*spec.head)) && (!spec.hyper_connections || spec.hyper_connections->rank == 0);
}

// Tokens from the first to the last that the convolution of n-grams looks at.
inline int conv_reach(const NgramsSpec& ngrams) {
  return (ngrams.conv_kernel - 1) * ngrams.size + 1;
}

// A layer's index in ngrams.layers; -1: it adds none.
inline int ngrams_of(const ModelSpec& spec, int layer) {
  if (!spec.ngrams) return -1;
  const auto found = std::ranges::find(spec.ngrams->layers, layer);
  return found == spec.ngrams->layers.end() ? -1 : static_cast<int>(found - spec.ngrams->layers.begin());
}

inline Mixer mixer_of(const ModelSpec& spec, int layer) {
  return spec.layer_mixers.empty() ? Mixer::kAttention : spec.layer_mixers[static_cast<size_t>(layer)];
}

inline bool has_attention(const ModelSpec& spec, int layer) {
  const Mixer mixer = mixer_of(spec, layer);
  return mixer == Mixer::kAttention || mixer == Mixer::kBoth;
}

inline bool has_recurrence(const ModelSpec& spec, int layer) {
  const Mixer mixer = mixer_of(spec, layer);
  return mixer == Mixer::kRecurrence || mixer == Mixer::kBoth;
}

inline bool has_compressed_attention(const ModelSpec& spec, int layer) {
  return mixer_of(spec, layer) == Mixer::kCompressed;
}

// How the halves of a layer are joined to the residual stream.
inline const BlockSpec& block_of(const ModelSpec& spec, int layer) {
  return spec.recurrence_block && has_recurrence(spec, layer) ? *spec.recurrence_block : spec.block;
}

// Layers whose keys and values are kept.
inline int attention_layer_count(const ModelSpec& spec) {
  int count = 0;
  for (int layer = 0; layer < spec.num_layers; ++layer) count += has_attention(spec, layer) ? 1 : 0;
  return count;
}

// Kinds of attention: 0 is `attention`, n is attentions[n - 1].
inline int attention_count(const ModelSpec& spec) {
  return 1 + static_cast<int>(spec.attentions.size());
}
inline const AttentionSpec& attention_kind(const ModelSpec& spec, int kind) {
  return kind == 0 ? spec.attention : spec.attentions[static_cast<size_t>(kind - 1)];
}
inline int attention_of(const ModelSpec& spec, int layer) {
  return spec.layer_attentions.empty() ? 0 : spec.layer_attentions[static_cast<size_t>(layer)];
}

// Of a kind of attention that is not latent.
struct HeadSizes {
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int value_dim = 0;
};
inline HeadSizes head_sizes(const ModelSpec& spec, int kind) {
  const AttentionSpec& kind_spec = attention_kind(spec, kind);
  const int head_dim = kind_spec.head_dim > 0 ? kind_spec.head_dim : spec.head_dim;
  return {kind_spec.num_heads > 0 ? kind_spec.num_heads : spec.num_heads,
          kind_spec.num_kv_heads > 0 ? kind_spec.num_kv_heads : spec.num_kv_heads, head_dim,
          kind_spec.value_dim > 0 ? kind_spec.value_dim : head_dim};
}

// The earlier layer whose keys and values a layer attends to; -1: its own.
inline int keys_of(const ModelSpec& spec, int layer) {
  return spec.layer_keys.empty() ? -1 : spec.layer_keys[static_cast<size_t>(layer)];
}

// Positions that a token of a layer sees, its own included; 0: all.
inline int window_of(const ModelSpec& spec, int layer) {
  const std::vector<int>& windows = attention_kind(spec, attention_of(spec, layer)).windows;
  return windows.empty() ? 0 : windows[static_cast<size_t>(layer)];
}

inline bool has_mixer(const ModelSpec& spec, int layer) {
  return mixer_of(spec, layer) != Mixer::kNone;
}
inline bool has_experts(const ModelSpec& spec, int layer) {
  return spec.moe && (spec.moe->layers.empty() || spec.moe->layers[static_cast<size_t>(layer)]);
}
// Whether a layer's experts are those of the token.
inline bool routes_by_token(const ModelSpec& spec, int layer) {
  return spec.moe && !spec.moe->by_token.empty() && spec.moe->by_token[static_cast<size_t>(layer)];
}
inline bool has_mlp(const ModelSpec& spec, int layer) {
  return spec.layer_mlps.empty() || spec.layer_mlps[static_cast<size_t>(layer)];
}
inline bool has_dense_mlp(const ModelSpec& spec, int layer) {
  return has_mlp(spec, layer) && (!has_experts(spec, layer) || spec.moe->is_alongside_mlp);
}
inline int mlp_size(const ModelSpec& spec, int layer) {
  return spec.mlp.sizes.empty() ? spec.intermediate_size : spec.mlp.sizes[static_cast<size_t>(layer)];
}

}  // namespace turbomind
