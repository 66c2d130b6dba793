#include "kernels/streams.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/cpu/for_rows.h"

namespace turbomind {

namespace {

float mean_square(const float* x, int size) {
  double sum = 0;
  for (int i = 0; i < size; ++i) sum += static_cast<double>(x[i]) * x[i];
  return static_cast<float>(sum / size);
}

float weight_of(const PartWeights& weights, size_t row, size_t part) {
  const float bias = weights.biases != nullptr ? weights.biases[part] : 0;
  const float logit = weights.scale * weights.logits[row * weights.stride + part] + bias;
  return weights.magnitude / (1 + std::exp(-logit)) + weights.eps;
}

using Square = std::array<std::array<float, kMaxMixedParts>, kMaxMixedParts>;

// The matrix of a row.
Square mixing_matrix(const MixingMatrix& matrix, size_t row, size_t count) {
  Square m{};
  for (size_t i = 0; i < count; ++i) {
    float top = -std::numeric_limits<float>::infinity();
    for (size_t k = 0; k < count; ++k) {
      const size_t at = i * count + k;
      m[i][k] = matrix.scale * matrix.logits[row * matrix.stride + at] + matrix.biases[at];
      top = std::max(top, m[i][k]);
    }
    float sum = 0;
    for (size_t k = 0; k < count; ++k) sum += m[i][k] = std::exp(m[i][k] - top);
    for (size_t k = 0; k < count; ++k) m[i][k] = m[i][k] / sum + matrix.eps;
  }
  for (int iteration = 0; iteration < matrix.iterations; ++iteration) {
    for (size_t i = 0; iteration > 0 && i < count; ++i) {
      float sum = matrix.eps;
      for (size_t k = 0; k < count; ++k) sum += m[i][k];
      for (size_t k = 0; k < count; ++k) m[i][k] /= sum;
    }
    for (size_t k = 0; k < count; ++k) {
      float sum = matrix.eps;
      for (size_t i = 0; i < count; ++i) sum += m[i][k];
      for (size_t i = 0; i < count; ++i) m[i][k] /= sum;
    }
  }
  return m;
}

// Adds `made` to the row's parts, mixed.
void add_to_mixed(const AddToParts& op, size_t row) {
  const auto count = static_cast<size_t>(op.count);
  const auto width = static_cast<size_t>(op.size);
  const Square m = mixing_matrix(op.matrix, row, count);
  std::array<float, kMaxMixedParts> weights{};
  for (size_t part = 0; part < count; ++part) weights[part] = weight_of(op.weights, row, part);
  float* x = op.x + row * count * width;
  for (size_t j = 0; j < width; ++j) {
    std::array<float, kMaxMixedParts> before{};
    for (size_t k = 0; k < count; ++k) before[k] = x[k * width + j];
    for (size_t i = 0; i < count; ++i) {
      float sum = weights[i] * op.made[row * width + j];
      for (size_t k = 0; k < count; ++k) sum += m[k][i] * before[k];
      x[i * width + j] = sum;
    }
  }
}

}  // namespace

void AltupPredict::run(ThreadPool& pool) const {
  const auto streams = static_cast<size_t>(count);
  const auto width = static_cast<size_t>(size);
  const size_t stream = static_cast<size_t>(rows) * width;
  for_rows(pool, rows, size * count * count, [&](size_t row) {
    for (size_t i = 0; i < streams; ++i) {
      float* to = y + i * stream + row * width;
      std::copy_n(x + i * stream + row * width, width, to);
      for (size_t k = 0; k < streams; ++k) {
        const float factor = factors[(row * streams + i) * streams + k];
        const float* from = x + k * stream + row * width;
        for (size_t j = 0; j < width; ++j) to[j] += factor * from[j];
      }
    }
  });
}

void AltupCorrect::run(ThreadPool& pool) const {
  const auto streams = static_cast<size_t>(count);
  const auto width = static_cast<size_t>(size);
  const size_t stream = static_cast<size_t>(rows) * width;
  for_rows(pool, rows, size * count, [&](size_t row) {
    const float* rows_factors = factors + row * streams;
    const float* active_row = x + static_cast<size_t>(active) * stream + row * width;
    for (size_t j = 0; j < width; ++j) {
      const float change = made[row * width + j] - active_row[j];
      for (size_t i = 0; i < streams; ++i) x[i * stream + row * width + j] += (1 + rows_factors[i]) * change;
    }
  });
}

void ScaledSum::run(ThreadPool& pool) const {
  for_rows(pool, rows, size, [&](size_t row) {
    const float* from = x + row * size;
    float* to = y + row * size;
    for (int i = 0; i < size; ++i) to[i] = (to[i] + from[i]) * scale;
  });
}

void MatchRms::run(ThreadPool& pool) const {
  for_rows(pool, rows, 2 * size, [&](size_t row) {
    float* row_values = x + row * size;
    const float requested = std::sqrt(mean_square(like + row * size, size));
    const float factor = requested / std::sqrt(std::max(mean_square(row_values, size), 1e-5f));
    for (int i = 0; i < size; ++i) row_values[i] *= factor;
  });
}

void MeanOfParts::run(ThreadPool& pool) const {
  const auto width = static_cast<size_t>(size);
  for_rows(pool, rows, size * count, [&](size_t row) {
    float* to = y + row * width;
    const float* from = x + row * width * static_cast<size_t>(count);
    std::copy_n(from, width, to);
    for (int i = 1; i < count; ++i) {
      from += width;
      for (size_t j = 0; j < width; ++j) to[j] += from[j];
    }
    for (size_t j = 0; j < width; ++j) to[j] /= static_cast<float>(count);
  });
}

void MixParts::run(ThreadPool& pool) const {
  const auto width = static_cast<size_t>(size);
  const auto parts = static_cast<size_t>(count);
  for_rows(pool, rows, size * count, [&](size_t row) {
    float* to = y + row * width;
    std::fill_n(to, width, 0.0f);
    for (size_t part = 0; part < parts; ++part) {
      const float weight = weight_of(weights, row, part);
      const float* from = x + (row * parts + part) * width;
      for (size_t j = 0; j < width; ++j) to[j] += weight * from[j];
    }
  });
}

void AddToParts::run(ThreadPool& pool) const {
  if (matrix.iterations > 0) {
    return for_rows(pool, rows, size * count * count, [&](size_t row) { add_to_mixed(*this, row); });
  }
  const auto width = static_cast<size_t>(size);
  for_rows(pool, rows * count, size, [&](size_t part) {
    const size_t row = part / static_cast<size_t>(count);
    const float weight = weight_of(weights, row, part % static_cast<size_t>(count));
    for (size_t j = 0; j < width; ++j) x[part * width + j] += weight * made[row * width + j];
  });
}

void ActivationSparsity::run(ThreadPool& pool) const {
  for_rows(pool, rows, 3 * size, [&](size_t row) {
    float* row_values = x + row * stride;
    double sum = 0;
    for (int i = 0; i < size; ++i) sum += row_values[i];
    const double mean = sum / size;
    double squares = 0;
    for (int i = 0; i < size; ++i) squares += (row_values[i] - mean) * (row_values[i] - mean);
    const auto cut = static_cast<float>(mean + factor * std::sqrt(squares / size));
    // A NaN stays.
    for (int i = 0; i < size; ++i) row_values[i] = row_values[i] <= cut ? 0.0f : row_values[i] - cut;
  });
}

}  // namespace turbomind
