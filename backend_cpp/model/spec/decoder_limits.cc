#include "model/spec/decoder_limits.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace turbomind {

void refuse_what_the_decoder_lacks(const ModelSpec& spec) {
  std::string lacking;
  const auto refuse_if = [&](bool is_used, const char* feature) {
    if (is_used) lacking += (lacking.empty() ? "" : ", ") + std::string(feature);
  };
  if (spec.attention.mla) {
    refuse_if(spec.attention.qk_norm != QkNorm::kNone, "attention.qk_norm with attention.mla");
    refuse_if(spec.attention.norms_rotated, "attention.norms_rotated with attention.mla");
    refuse_if(spec.attention.qkv_clip != 0, "attention.qkv_clip with attention.mla");
    refuse_if(spec.attention.qkv_bias, "attention.qkv_bias with attention.mla");
    refuse_if(spec.attention.softcap != 0, "attention.softcap with attention.mla");
    refuse_if(spec.attention.value_scale != 1, "attention.value_scale with attention.mla");
    refuse_if(!spec.attention.alibi_slopes.empty(), "attention.alibi_slopes with attention.mla");
    refuse_if(spec.attention.has_sinks, "attention.has_sinks with attention.mla");
    refuse_if(spec.attention.logn_length != 0, "attention.logn_length with attention.mla");
    refuse_if(std::any_of(spec.attention.windows.begin(), spec.attention.windows.end(), [](int w) { return w > 0; }),
              "attention.windows with attention.mla");
  }
  refuse_if(spec.moe && spec.moe->router.scales_input && spec.moe->experts_per_token != 1,
            "moe.router.scales_input with several experts a token");
  if (!lacking.empty()) {
    throw invalid_argument(spec.architecture + " needs what the engine does not have yet: " + lacking);
  }
}

}  // namespace turbomind
