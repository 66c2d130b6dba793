#include "model/recurrence/recurrence_weights.h"

#include <algorithm>
#include <utility>

namespace turbomind {

namespace {

// A convolution with one tap, which leaves the activation alone.
AlignedBuffer ones(int channels) {
  AlignedBuffer taps(static_cast<size_t>(channels) * sizeof(float));
  std::fill_n(taps.as<float>(), channels, 1.0f);
  return taps;
}

// A convolution is linear in its inputs: their factors are as well its taps'.
void scale_channels(const RecurrenceSpec& own, int keys, int values, const AlignedBuffer& conv) {
  if (own.kind == RecurrenceKind::kShortConvolution) return;
  float* tap = conv.as<float>();
  for (const auto& [channels, scale] :
       {std::pair(keys, own.query_scale), std::pair(keys, own.key_scale), std::pair(values, own.value_scale)}) {
    for (float* end = tap + static_cast<size_t>(channels) * own.conv_kernel; tap < end; ++tap) *tap *= scale;
  }
}

}  // namespace

RecurrenceWeights RecurrenceWeights::load(const Shard& shard, const WeightReader& read, const std::string& prefix) {
  const ModelSpec& spec = shard.spec;
  const RecurrenceSpec& own = *spec.recurrence;
  const Slice heads = shard.state_heads;
  const Slice values = heads.times(own.value_dim);
  const Slice keys = shard.state_key_heads.times(own.key_dim);
  const int hidden = spec.hidden_size;
  Slice inputs = Slice::joined({keys, keys, values, values});
  Slice channels = Slice::joined({keys, keys, values});
  RecurrenceWeights weights;
  switch (own.kind) {
    case RecurrenceKind::kGatedDelta:
      weights.gates = read.linear(prefix + "gates", Slice::joined({heads, heads}), hidden, own.bias);
      break;
    case RecurrenceKind::kKimiDelta:
      inputs = channels;
      weights.gates = read.linear(prefix + "gates", heads, hidden, own.bias);
      weights.decay_down = read.linear(prefix + "decay_down", own.gate_rank, hidden, false);
      weights.decay_up = read.linear(prefix + "decay_up", keys, own.gate_rank, false);
      weights.gate_down = read.linear(prefix + "gate_down", own.gate_rank, hidden, false);
      weights.gate_up = read.linear(prefix + "gate_up", values, own.gate_rank, false);
      break;
    case RecurrenceKind::kMamba2:
      inputs = Slice::joined({keys, keys, values, values, heads});
      weights.skip = read.vector(prefix + "skip", heads);
      break;
    case RecurrenceKind::kLightning:
      break;
    case RecurrenceKind::kShortConvolution:
      inputs = Slice::joined({values, values, values});
      channels = values;
      break;
  }
  weights.in = read.linear(prefix + "in", inputs, hidden, own.bias);
  weights.conv = own.conv_kernel > 1
                     ? std::move(read.matrix(prefix + "conv", channels, own.conv_kernel, DType::kFloat32).data)
                     : ones(channels.size());
  scale_channels(own, keys.size(), values.size(), weights.conv);
  if (own.conv_bias) weights.conv_bias = read.vector(prefix + "conv_bias", channels);
  if (own.kind != RecurrenceKind::kShortConvolution && own.kind != RecurrenceKind::kLightning) {
    weights.a_log = read.vector(prefix + "a_log", heads);
    weights.dt_bias = read.vector(prefix + "dt_bias", own.kind == RecurrenceKind::kKimiDelta ? keys : heads);
  }
  if (own.norm != RecurrenceNorm::kNone) {
    const Slice groups = shares_norm(shard) ? Slice(values.whole()) : values;
    const Slice size = own.norm == RecurrenceNorm::kHead ? Slice(own.value_dim) : groups;
    const float eps = own.norm_eps > 0 ? own.norm_eps : spec.norm.eps;
    weights.norm = NormStorage::load(read, prefix + "norm", size, {eps}, false);
  }
  weights.out = read.linear(prefix + "out", hidden, values, own.bias);
  return weights;
}

}  // namespace turbomind
