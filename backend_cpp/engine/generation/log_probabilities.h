// What the model itself says of tokens, before penalties and limits.
#pragma once

#include <cstdint>

#include "engine/request.h"

namespace turbomind {

// Log probabilities of `token`, and of the `top` most likely. logits [vocab_size].
TokenLogprobs log_probabilities(const float* logits, int vocab_size, int32_t token, int top);
// -log p of `token`.
double negative_log_probability(const float* logits, int vocab_size, int32_t token);

}  // namespace turbomind
