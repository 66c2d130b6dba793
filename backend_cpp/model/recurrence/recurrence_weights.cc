#include "model/recurrence/recurrence_weights.h"

#include <utility>

namespace turbomind {

RecurrenceWeights RecurrenceWeights::load(const Shard& shard, const WeightReader& read, const std::string& prefix) {
  const ModelSpec& spec = shard.spec;
  const RecurrenceSpec& own = *spec.recurrence;
  const Slice heads = shard.state_heads;
  const Slice values = heads.times(own.value_dim);
  const Slice keys = shard.state_key_heads.times(own.key_dim);
  Slice inputs = Slice::joined({keys, keys, values, values});
  Slice channels = Slice::joined({keys, keys, values});
  RecurrenceWeights weights;
  switch (own.kind) {
    case RecurrenceKind::kGatedDelta:
      weights.gates = read.linear(prefix + "gates", Slice::joined({heads, heads}), spec.hidden_size, own.bias);
      break;
    case RecurrenceKind::kMamba2:
      inputs = Slice::joined({keys, keys, values, values, heads});
      weights.skip = read.vector(prefix + "skip", heads);
      break;
    case RecurrenceKind::kShortConvolution:
      inputs = Slice::joined({values, values, values});
      channels = values;
      break;
  }
  weights.in = read.linear(prefix + "in", inputs, spec.hidden_size, own.bias);
  weights.conv = std::move(read.matrix(prefix + "conv", channels, own.conv_kernel, DType::kFloat32).data);
  if (own.conv_bias) weights.conv_bias = read.vector(prefix + "conv_bias", channels);
  if (own.kind != RecurrenceKind::kShortConvolution) {
    weights.a_log = read.vector(prefix + "a_log", heads);
    weights.dt_bias = read.vector(prefix + "dt_bias", heads);
  }
  if (own.norm != RecurrenceNorm::kNone) {
    const Slice size = own.norm == RecurrenceNorm::kHead ? Slice(own.value_dim) : values;
    weights.norm = NormStorage::load(read, prefix + "norm", size, {spec.norm.eps}, false);
  }
  weights.out = read.linear(prefix + "out", spec.hidden_size, values, own.bias);
  return weights;
}

}  // namespace turbomind
