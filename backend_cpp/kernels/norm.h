// RMSNorm (Zhang & Sennrich, 2019): y = x / sqrt(mean(x^2) + eps) * weight.
//
//   x, y [rows, size]   float32, row-major; y may be x
//   weight [size]       float32
#pragma once

#include "base/thread_pool.h"

namespace turbomind {

void rms_norm(ThreadPool& pool, const float* x, const float* weight, float eps, int rows, int size, float* y);

}  // namespace turbomind
