// The rows of an embedding.
#pragma once

#include <cstdint>

#include "kernels/linear.h"

namespace turbomind {

// y[row] = scale table[tokens[row]]. table [vocab, size] float32, bfloat16 or float16; y [rows, size] float32
void embed(const LinearWeight& table, const int32_t* tokens, int rows, float scale, float* y);

}  // namespace turbomind
