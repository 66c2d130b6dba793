// Activation between the projections of an MLP.
//
//   silu            v / (1 + exp(-v))
//   gelu            v Phi(v), Phi the normal distribution (Hendrycks & Gimpel, 2016), within 4e-7 |v|
//   gelu_tanh       its approximation v / (1 + exp(-2 u)), u = sqrt(2 / pi) (v + 0.044715 v^3)
//   relu, relu2     max(v, 0), and its square
//   sigmoid         1 / (1 + exp(-v))
//   softplus        log(1 + exp(v))
//   linear          v
//   clamped_swiglu  gated only: (up + 1) g / (1 + exp(-1.702 g)), g = min(gate, 7) and up within [-7, 7] (GPT-OSS)
//   silu_7, silu_16 min(silu, 7) times up within [-7, 7], and the same with 16 (Step 3.5)
//   clamped_silu_10 gated only: silu(min(gate, 10)) times up within [-10, 10] (HY-V4)
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/heads_view.h"
#include "kernels/operation.h"

namespace turbomind {

enum class Activation : uint8_t {
  kSilu,
  kGelu,
  kGeluTanh,
  kRelu,
  kRelu2,
  kClampedSwiglu,
  kSilu7,
  kSilu16,
  kClampedSilu10,
  kSigmoid,
  kSoftplus,
  kLinear
};

// y = act(gate) * up, or act(gate) where `up` is {}. Views of equal rows, heads and head_dim; y may be either.
void activate(ThreadPool& pool, Activation activation, const HeadsView& gate, const HeadsView& up, const HeadsView& y);

// xIELU (Huang & Schlag, 2024, arXiv 2411.13010), whose factors a layer has learned.
struct XieluFactors {
  float positive = 0;  // alpha p
  float negative = 0;  // alpha n
  float linear = 0;    // beta
};

// y = positive max(x, 0)^2 + negative (exp(n) - 1 - n) + linear x, n = min(x, 0); x, y [rows, size], y may be x. Near 0
// the second part is off by up to 2^-23 negative.
struct Xielu {
  static constexpr std::string_view kName = "xielu";

  XieluFactors factors;
  const float* x = nullptr;
  int rows = 0;
  int size = 0;
  float* y = nullptr;

  void run(ThreadPool& pool) const;
  void run(CudaStream stream) const;
};

// The function of each number.
struct Pointwise {
  enum class Kind : uint8_t {
    kScale,      // scale x
    kScaleRows,  // factors[row] x
    kCap,        // limit tanh(scale x / limit)
    kClamp,      // x within [-limit, limit]
    kSigmoid,    // 1 / (1 + exp(-x))
  };

  Kind kind = Kind::kScale;
  float scale = 1;
  float limit = 0;
  const float* factors = nullptr;  // [rows]
};

// In place.
void apply(ThreadPool& pool, const Pointwise& function, const HeadsView& x);

// y += scale x; both [rows, size]
void add_scaled(ThreadPool& pool, float scale, const float* x, int rows, int size, float* y);

}  // namespace turbomind
