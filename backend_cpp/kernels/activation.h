// Gated SiLU: y = silu(gate) * up, silu(v) = v / (1 + exp(-v)).
//
//   gate_up [rows, 2 size]   float32, row-major: gate in the first half of a row, up in the second
//   y [rows, size]           float32, row-major
#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace turbomind {

enum class Activation : uint8_t { kSilu, kGelu, kGeluTanh, kRelu, kRelu2, kClampedSwiglu };

void silu_and_mul(ThreadPool& pool, const float* gate_up, int rows, int size, float* y);

}  // namespace turbomind
