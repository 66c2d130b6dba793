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
  refuse_if(spec.attention.mla.has_value(), "attention.mla");
  refuse_if(spec.attention.softcap != 0, "attention.softcap");
  refuse_if(std::any_of(spec.attention.windows.begin(), spec.attention.windows.end(), [](int w) { return w != 0; }),
            "attention.windows");
  refuse_if(!spec.attention.alibi_slopes.empty(), "attention.alibi_slopes");
  refuse_if(spec.attention.has_sinks, "attention.has_sinks");
  refuse_if(any_rope([](const RopeSpec& rope) { return rope.stretch.kind != StretchKind::kNone; }), "rope.stretch");
  if (!lacking.empty()) {
    throw invalid_argument(spec.architecture + " needs what the engine does not have yet: " + lacking);
  }
}

}  // namespace turbomind
