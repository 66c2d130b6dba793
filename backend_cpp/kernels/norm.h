// RMSNorm (Zhang & Sennrich, 2019) and LayerNorm (Ba et al., 2016):
//
//   rms    y = x / sqrt(mean(x^2) + eps) * weight
//   layer  y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias
//
// All float32. A row's result does not depend on the other rows.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/heads_view.h"

namespace turbomind {

enum class NormKind : uint8_t { kRms, kLayer };

struct NormWeight {
  NormKind kind = NormKind::kRms;
  float eps = 0;
  const float* weight = nullptr;  // [size]
  const float* bias = nullptr;    // [size], or null; kLayer only
};

// Every head by itself, with one weight [head_dim] for all; y may be x.
void norm(ThreadPool& pool, const NormWeight& weight, const HeadsView& x, const HeadsView& y);

}  // namespace turbomind
