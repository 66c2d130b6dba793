#include "model/decoder_limits.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace turbomind {

void refuse_what_the_decoder_lacks(const ModelSpec& spec) {
  std::string lacking;
  const auto refuse_if = [&](bool is_used, const char* feature) {
    if (is_used) lacking += (lacking.empty() ? "" : ", ") + std::string(feature);
  };
  const auto any_rope = [&](const auto& uses) { return std::any_of(spec.ropes.begin(), spec.ropes.end(), uses); };
  refuse_if(spec.norm.kind != NormKind::kRms, "norm.kind layer");
  refuse_if(spec.norm.offset != 0, "norm.offset");
  refuse_if(spec.norm.bias, "norm.bias");
  refuse_if(spec.block.is_parallel, "block.is_parallel");
  refuse_if(spec.block.has_output_norms, "block.has_output_norms");
  refuse_if(spec.block.residual_scale != 1, "block.residual_scale");
  refuse_if(spec.mlp.activation != Activation::kSilu, "mlp.activation");
  refuse_if(!spec.mlp.is_gated, "mlp.is_gated false");
  refuse_if(spec.mlp.bias, "mlp.bias");
  refuse_if(spec.moe.has_value(), "moe");
  refuse_if(spec.attention.mla.has_value(), "attention.mla");
  refuse_if(spec.attention.qk_norm != QkNorm::kNone, "attention.qk_norm");
  refuse_if(spec.attention.softcap != 0, "attention.softcap");
  refuse_if(std::any_of(spec.attention.windows.begin(), spec.attention.windows.end(), [](int w) { return w != 0; }),
            "attention.windows");
  refuse_if(!spec.attention.alibi_slopes.empty(), "attention.alibi_slopes");
  refuse_if(spec.attention.has_sinks, "attention.has_sinks");
  refuse_if(spec.attention.logn_length != 0, "attention.logn_length");
  refuse_if(spec.ropes.size() != 1 || spec.layer_ropes != std::vector<int>(spec.layer_ropes.size(), 0),
            "several ropes, or layers without");
  refuse_if(any_rope([&](const RopeSpec& r) { return 2 * r.inv_freq.size() != static_cast<size_t>(spec.head_dim); }),
            "rope over a part of the head");
  refuse_if(any_rope([](const RopeSpec& rope) { return rope.is_interleaved; }), "rope.is_interleaved");
  refuse_if(any_rope([](const RopeSpec& rope) { return rope.stretch.kind != StretchKind::kNone; }), "rope.stretch");
  refuse_if(spec.output.scale != 1, "output.scale");
  refuse_if(spec.output.softcap != 0, "output.softcap");
  refuse_if(spec.output.bias, "output.bias");
  refuse_if(spec.embedding_scale != 1, "embedding_scale");
  if (!lacking.empty()) {
    throw invalid_argument(spec.architecture + " needs what the engine does not have yet: " + lacking);
  }
}

}  // namespace turbomind
