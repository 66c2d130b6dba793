#include "model/spec/long_context.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace turbomind {

namespace {

// Whether the frequencies are theta^(-2 i / dimensions), without any scaling.
bool is_plain(const RopeSpec& rope) {
  const double dimensions = 2.0 * static_cast<double>(rope.inv_freq.size());
  for (size_t i = 0; i < rope.inv_freq.size(); ++i) {
    const double plain = std::pow(rope.theta, -2.0 * static_cast<double>(i) / dimensions);
    if (std::abs(rope.inv_freq[i] - plain) > 1e-4 * plain) return false;
  }
  return rope.attention_scaling == 1;
}

}  // namespace

void extend_context(ModelSpec& spec, const LongContext& settings) {
  const auto grow_queries = [&](AttentionSpec& attention) {
    if (attention.logn_length == 0) attention.logn_length = spec.max_position_embeddings;
  };
  if (settings.use_logn_attn) {
    grow_queries(spec.attention);
    std::ranges::for_each(spec.attentions, grow_queries);
  }
  if (settings.rope_scaling_factor == 0) return;
  if (settings.rope_scaling_factor < 1) {
    throw invalid_argument("rope_scaling_factor must be 0 or >= 1, got " +
                           std::to_string(settings.rope_scaling_factor));
  }
  if (spec.ropes.empty()) throw invalid_argument("rope_scaling_factor: this model does not rotate positions; use 0");
  for (RopeSpec& rope : spec.ropes) {
    if (!rope.stretch && is_plain(rope)) {
      rope.stretch.emplace().length = spec.max_position_embeddings;
    } else if (!rope.stretch || rope.stretch->kind != StretchKind::kDynamic) {
      throw invalid_argument("rope_scaling_factor: this model's checkpoint has its own scaling; use 0");
    }
    rope.stretch->kind = StretchKind::kDynamic;
    rope.stretch->factor = settings.rope_scaling_factor;
  }
}

}  // namespace turbomind
