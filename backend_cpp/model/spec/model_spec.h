// What one decoder model is: the fields of model_spec_fields.h, read from spec.json (docs/internals/interfaces.md), and
// what follows from them. lmdeploy/turbomind/spec/ declares and explains every field, and checks them all.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include "model/spec/model_spec_fields.h"

namespace turbomind {

// Throws Error naming the file and the first thing wrong in it.
ModelSpec read_model_spec(const std::string& path);

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

inline bool has_attention(const ModelSpec& spec, int layer) {
  const Mixer mixer = spec.layer_mixers[static_cast<size_t>(layer)];
  return mixer == Mixer::kAttention || mixer == Mixer::kBoth;
}

inline bool has_recurrence(const ModelSpec& spec, int layer) {
  const Mixer mixer = spec.layer_mixers[static_cast<size_t>(layer)];
  return mixer == Mixer::kRecurrence || mixer == Mixer::kBoth;
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

// Numbers of a row that are values, and such that are queries, of a recurrence.
inline int values_of(const RecurrenceSpec& recurrence) {
  return recurrence.num_heads * recurrence.value_dim;
}
inline int queries_of(const RecurrenceSpec& recurrence) {
  if (recurrence.kind == RecurrenceKind::kShortConvolution) return 0;
  return recurrence.num_key_heads * recurrence.key_dim;
}

// Of queries, keys and values, which a recurrence's convolution mixes over tokens.
inline int channels_of(const RecurrenceSpec& recurrence) {
  return 2 * queries_of(recurrence) + values_of(recurrence);
}

}  // namespace turbomind
