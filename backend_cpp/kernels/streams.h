// Residual streams of AltUp (Baykal et al., 2023, arXiv 2301.13310) and of hyper-connections (Zhu et al., 2024, arXiv
// 2409.19606), and activation sparsity. Sums go from the first
// element on; a row's result depends on that row alone.
#pragma once

#include <cstddef>

#include "base/thread_pool.h"
#include "kernels/operation.h"

namespace turbomind {

// y[i] = x[i] + sum over k of factors[row, i, k] x[k]; y is not x.
struct AltupPredict {
  static constexpr std::string_view kName = "altup_predict";

  int count = 0;
  int rows = 0;
  int size = 0;
  const float* factors = nullptr;  // [rows, count, count]
  const float* x = nullptr;        // [count, rows, size]
  float* y = nullptr;              // the same

  void run(ThreadPool& pool) const;
  void run(CudaStream stream) const;
};

// x[i] += (1 + factors[row, i]) (made - x[active] as it was)
struct AltupCorrect {
  static constexpr std::string_view kName = "altup_correct";

  int count = 0;
  int rows = 0;
  int size = 0;
  int active = 0;
  const float* factors = nullptr;  // [rows, count]
  const float* made = nullptr;     // [rows, size]
  float* x = nullptr;              // [count, rows, size]

  void run(ThreadPool& pool) const;
  void run(CudaStream stream) const;
};

// y = scale (x + y)
struct ScaledSum {
  static constexpr std::string_view kName = "scaled_sum";

  float scale = 1;
  const float* x = nullptr;  // [rows, size]
  int rows = 0;
  int size = 0;
  float* y = nullptr;  // [rows, size]

  void run(ThreadPool& pool) const;
  void run(CudaStream stream) const;
};

// x *= rms(like) / max(rms(x), sqrt(1e-5)), row by row
struct MatchRms {
  static constexpr std::string_view kName = "match_rms";

  const float* like = nullptr;  // [rows, size]
  int rows = 0;
  int size = 0;
  float* x = nullptr;  // [rows, size]

  void run(ThreadPool& pool) const;
  void run(CudaStream stream) const;
};

// y = the mean of a row's parts, added up in order
struct MeanOfParts {
  static constexpr std::string_view kName = "mean_of_parts";

  int count = 0;
  int rows = 0;
  int size = 0;
  const float* x = nullptr;  // [rows, count, size]
  float* y = nullptr;        // [rows, size]

  void run(ThreadPool& pool) const;
};

// Weights of a row's parts: magnitude sigmoid(scale logit + bias) + eps.
struct PartWeights {
  const float* logits = nullptr;  // [rows, count], `stride` floats apart
  size_t stride = 0;
  const float* biases = nullptr;  // [count], or null: 0
  float scale = 1;
  float magnitude = 1;
  float eps = 0;
};

// y[row] = the sum of x[row, i] times its weight, in order
struct MixParts {
  static constexpr std::string_view kName = "mix_parts";

  int count = 0;
  int rows = 0;
  int size = 0;
  PartWeights weights;
  const float* x = nullptr;  // [rows, count, size]
  float* y = nullptr;        // [rows, size]

  void run(ThreadPool& pool) const;
};

// x[row, i] += made[row] times the weight of i
struct AddToParts {
  static constexpr std::string_view kName = "add_to_parts";

  int count = 0;
  int rows = 0;
  int size = 0;
  PartWeights weights;
  const float* made = nullptr;  // [rows, size]
  float* x = nullptr;           // [rows, count, size]

  void run(ThreadPool& pool) const;
};

// x = max(x - mean - factor deviation, 0), with mean and standard deviation (of a whole population) of the row
struct ActivationSparsity {
  static constexpr std::string_view kName = "activation_sparsity";

  float factor = 0;
  int rows = 0;
  int size = 0;
  size_t stride = 0;   // of rows
  float* x = nullptr;  // [rows, size]

  void run(ThreadPool& pool) const;
  void run(CudaStream stream) const;
};

}  // namespace turbomind
