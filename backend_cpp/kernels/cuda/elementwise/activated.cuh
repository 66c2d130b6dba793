// An activation of one number, in kernels; as kernels/activation.h says. NaN stays NaN.
#pragma once

#include "kernels/activation.h"
#include "kernels/cuda/device.h"

namespace turbomind::cuda {

// Comparisons instead of fminf and fmaxf, which drop NaN.
__device__ __forceinline__ float at_least(float v, float low) {
  return v < low ? low : v;
}

__device__ __forceinline__ float at_most(float v, float high) {
  return v > high ? high : v;
}

// v / (1 + exp(-slope v))
__device__ __forceinline__ float sigmoid_linear(float v, float slope) {
  return v / (1.0f + expf(-v * slope));
}

// log(1 + e^v)
__device__ __forceinline__ float softplus(float v) {
  return at_least(v, 0.0f) + log1pf(expf(-fabsf(v)));
}

// max(v, 0) - |v| erfc(|v| / sqrt 2) / 2, so that the tail keeps its precision.
__device__ __forceinline__ float gelu(float v) {
  const float magnitude = fabsf(v);
  return at_least(v, 0.0f) - 0.5f * magnitude * erfcf(magnitude * 0.70710678f);
}

__device__ __forceinline__ float bounded_silu(float gate, float up, float limit) {
  return at_most(sigmoid_linear(gate, 1.0f), limit) * at_least(at_most(up, limit), -limit);
}

__device__ __forceinline__ float activated(Activation activation, float gate, float up) {
  switch (activation) {
    case Activation::kSilu:
      return sigmoid_linear(gate, 1.0f) * up;
    case Activation::kGelu:
      return gelu(gate) * up;
    case Activation::kGeluTanh:  // 2 sqrt(2 / pi)
      return sigmoid_linear(gate, (gate * gate * 0.044715f + 1.0f) * 1.5957691216f) * up;
    case Activation::kRelu:
      return at_least(gate, 0.0f) * up;
    case Activation::kRelu2:
      return at_least(gate, 0.0f) * at_least(gate, 0.0f) * up;
    case Activation::kClampedSwiglu:
      return sigmoid_linear(at_most(gate, 7.0f), 1.702f) * (at_least(at_most(up, 7.0f), -7.0f) + 1.0f);
    case Activation::kSilu7:
      return bounded_silu(gate, up, 7.0f);
    case Activation::kSilu16:
      return bounded_silu(gate, up, 16.0f);
    case Activation::kClampedSilu10:
      return sigmoid_linear(at_most(gate, 10.0f), 1.0f) * at_least(at_most(up, 10.0f), -10.0f);
    case Activation::kSigmoid:
      return 1.0f / (1.0f + expf(-gate)) * up;
    case Activation::kSoftplus:
      return softplus(gate) * up;
    case Activation::kLinear:
      return gate * up;
  }
  return 0.0f;
}

}  // namespace turbomind::cuda
