// y = x W^T + b for weights kept in 32 or 16 bits.
//
//   x [rows, in_features]              float32, row-major, densely packed
//   w [out_features, in_features]      float32 or bfloat16, row-major, densely packed
//   bias [out_features]                float32, may be null
//   y [rows, out_features]             float32, row-major; with accumulate, y += instead of y =
//
// Products and sums are float32 (bfloat16 weights are widened exactly). Each output element is one dot product summed
// in an order that depends only on in_features and the instruction set: not on rows, on the tile or the thread that
// computes it. So a row's result is bitwise the same alone, in a batch, and in any chunk of a prompt.
//
// Few rows stream the weights once from memory; many rows are blocked so that a tile of x stays in the second-level
// cache while the weights pass by.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/types.h"

namespace turbomind {

struct LinearWeight {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  int out_features = 0;
  int in_features = 0;
  const float* bias = nullptr;
};

void linear(ThreadPool& pool, const LinearWeight& weight, const float* x, int rows, float* y, bool accumulate);

}  // namespace turbomind
