// What is between the projections of an MLP.
//
//   silu            v / (1 + exp(-v))
//   gelu            v Phi(v), Phi the normal distribution (Hendrycks & Gimpel, 2016), within 4e-7 |v|
//   gelu_tanh       its approximation v / (1 + exp(-2 u)), u = sqrt(2 / pi) (v + 0.044715 v^3)
//   relu, relu2     max(v, 0), and its square
//   clamped_swiglu  gated only: (up + 1) g / (1 + exp(-1.702 g)), g = min(gate, 7) and up within [-7, 7] (GPT-OSS)
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/operation.h"

namespace turbomind {

enum class Activation : uint8_t { kSilu, kGelu, kGeluTanh, kRelu, kRelu2, kClampedSwiglu };

// y = act(gate) * up; the first half of a row of gate_up [rows, 2 size] is gate, the second up. y [rows, size]
void activate_gated(ThreadPool& pool, Activation activation, const float* gate_up, int rows, int size, float* y);

// y = act(x); x, y [rows, size], y may be x
void activate(ThreadPool& pool, Activation activation, const float* x, int rows, int size, float* y);

// xIELU (Huang & Schlag, 2024, arXiv 2411.13010), whose factors a layer has learned.
struct XieluFactors {
  float positive = 0;  // alpha p
  float negative = 0;  // alpha n
  float linear = 0;    // beta
};

// y = positive max(x, 0)^2 + negative (exp(n) - 1 - n) + linear x, n = min(x, 0); x, y [rows, size], y may be x. Near 0
// the second part is off by up to 2^-23 negative.
void xielu(ThreadPool& pool, const XieluFactors& factors, const float* x, int rows, int size, float* y);
inline constexpr Operation kXielu("xielu", xielu);

// x = softcap tanh(scale x / softcap), or scale x where softcap is 0. x [rows, size]
void scale_and_cap(ThreadPool& pool, float scale, float softcap, int rows, int size, float* x);

// y += scale x; both [rows, size]
void add_scaled(ThreadPool& pool, float scale, const float* x, int rows, int size, float* y);

}  // namespace turbomind
