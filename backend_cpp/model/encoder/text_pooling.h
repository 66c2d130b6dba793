// What an encoder makes of a text: one vector of the hidden states of its tokens.
#pragma once

#include "model/spec/model_spec_fields.h"

namespace turbomind {

// Whether one token's hidden state is the vector.
constexpr bool takes_one(TextPooling pooling) {
  return pooling == TextPooling::kFirst || pooling == TextPooling::kLast;
}

// vector [size] of rows [count, size], count >= 1. Rows are summed in order, so that the bits depend on the text alone.
void pool_text(TextPooling pooling, const float* rows, int count, int size, float* vector);

}  // namespace turbomind
