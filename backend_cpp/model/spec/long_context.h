// Engine settings that carry a model beyond the length it was trained for.
#pragma once

#include "model/spec/model_spec.h"

namespace turbomind {

struct LongContext {
  float rope_scaling_factor = 0;  // from 1 on: theta grows with prompts beyond the trained length (dynamic NTK)
  bool use_logn_attn = false;     // queries grow with the logarithm of their position beyond it
};

// Changes `spec` as the settings say. Throws Error for a model whose positions cannot be stretched so.
void extend_context(ModelSpec& spec, const LongContext& settings);

}  // namespace turbomind
