// Residual streams of AltUp (Baykal et al., 2023, arXiv 2301.13310) and of hyper-connections (Zhu et al., 2024, arXiv
// 2409.19606; manifold-constrained: Xie et al., 2025, arXiv 2512.24880), and activation sparsity. Sums go from the
// first element on; a row's result depends on that row alone.
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

// Most parts whose MixingMatrix there can be.
inline constexpr int kMaxMixedParts = 8;

// A matrix that is nearly doubly stochastic, by Sinkhorn's iterations: m = softmax of each row of scale logits +
// biases, plus eps; then its columns and rows in turns, the columns first and last, are divided by their sums plus eps.
struct MixingMatrix {
  const float* logits = nullptr;  // [rows, count, count], `stride` floats apart
  size_t stride = 0;
  const float* biases = nullptr;  // [count, count]
  float scale = 1;
  float eps = 0;
  int iterations = 0;  // 0: there is none; else divisions of the columns
};

// x[row, i] += made[row] times the weight of i; with a matrix m, x[row, i] = the sum over k of m[k, i] x[row, k], and
// that
struct AddToParts {
  static constexpr std::string_view kName = "add_to_parts";

  int count = 0;  // with a matrix at most kMaxMixedParts
  int rows = 0;
  int size = 0;
  PartWeights weights;
  const float* made = nullptr;  // [rows, size]
  float* x = nullptr;           // [rows, count, size]
  MixingMatrix matrix;

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
