#include "model/decoder_limits.h"

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
    refuse_if(spec.attention.qkv_clip != 0, "attention.qkv_clip with attention.mla");
    refuse_if(spec.attention.qkv_bias, "attention.qkv_bias with attention.mla");
  }
  if (!lacking.empty()) {
    throw invalid_argument(spec.architecture + " needs what the engine does not have yet: " + lacking);
  }
}

}  // namespace turbomind
