#include "model/decoder_limits.h"

#include <string>

#include "base/error.h"

namespace turbomind {

void refuse_what_the_decoder_lacks(const ModelSpec& spec) {
  std::string lacking;
  const auto refuse_if = [&](bool is_used, const char* feature) {
    if (is_used) lacking += (lacking.empty() ? "" : ", ") + std::string(feature);
  };
  refuse_if(spec.attention.mla.has_value(), "attention.mla");
  if (!lacking.empty()) {
    throw invalid_argument(spec.architecture + " needs what the engine does not have yet: " + lacking);
  }
}

}  // namespace turbomind
