#include "model/recurrence/recurrence_weights.h"

#include <utility>

namespace turbomind {

RecurrenceWeights RecurrenceWeights::load(const Shard& shard, const WeightReader& read, const std::string& prefix) {
  const ModelSpec& spec = shard.spec;
  const RecurrenceSpec& own = *spec.recurrence;
  const Slice keys = shard.state_key_heads.times(own.key_dim);
  const Slice values = shard.state_heads.times(own.value_dim);
  const Slice channels = Slice::joined({keys, keys, values});
  const Slice heads = shard.state_heads;
  RecurrenceWeights weights;
  weights.in = read.linear(prefix + "in", Slice::joined({keys, keys, values, values}), spec.hidden_size, false);
  weights.gates = read.linear(prefix + "gates", Slice::joined({heads, heads}), spec.hidden_size, false);
  weights.conv = std::move(read.matrix(prefix + "conv", channels, own.conv_kernel, DType::kFloat32).data);
  weights.a_log = read.vector(prefix + "a_log", heads);
  weights.dt_bias = read.vector(prefix + "dt_bias", heads);
  weights.norm = NormStorage::load(read, prefix + "norm", own.value_dim, {spec.norm.eps}, false);
  weights.out = read.linear(prefix + "out", spec.hidden_size, values, false);
  return weights;
}

}  // namespace turbomind
