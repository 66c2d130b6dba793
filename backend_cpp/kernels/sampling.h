// Operations on one row of logits.
#pragma once

#include <cstdint>

namespace turbomind {

// Index of the largest value, the lowest index among equals; -1 if any value is NaN or all are -infinity.
int32_t argmax(const float* logits, int size);

}  // namespace turbomind
