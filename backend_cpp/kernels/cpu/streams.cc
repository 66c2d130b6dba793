#include "kernels/streams.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/for_rows.h"

namespace turbomind {

namespace {

float mean_square(const float* x, int size) {
  double sum = 0;
  for (int i = 0; i < size; ++i) sum += static_cast<double>(x[i]) * x[i];
  return static_cast<float>(sum / size);
}

}  // namespace

void mix_streams(ThreadPool& pool, const StreamShape& shape, const float* factors, const float* x, float* y) {
  const auto count = static_cast<size_t>(shape.count);
  const auto size = static_cast<size_t>(shape.size);
  const size_t stream = static_cast<size_t>(shape.rows) * size;
  for_rows(pool, shape.rows, shape.size * shape.count * shape.count, [&](size_t row) {
    for (size_t i = 0; i < count; ++i) {
      float* to = y + i * stream + row * size;
      std::copy_n(x + i * stream + row * size, size, to);
      for (size_t k = 0; k < count; ++k) {
        const float factor = factors[(row * count + i) * count + k];
        const float* from = x + k * stream + row * size;
        for (size_t j = 0; j < size; ++j) to[j] += factor * from[j];
      }
    }
  });
}

void correct_streams(ThreadPool& pool, const StreamShape& shape, int active, const float* factors, const float* made,
                     float* x) {
  const auto count = static_cast<size_t>(shape.count);
  const auto size = static_cast<size_t>(shape.size);
  const size_t stream = static_cast<size_t>(shape.rows) * size;
  for_rows(pool, shape.rows, shape.size * shape.count, [&](size_t row) {
    const float* rows_factors = factors + row * count;
    const float* active_row = x + static_cast<size_t>(active) * stream + row * size;
    for (size_t j = 0; j < size; ++j) {
      const float change = made[row * size + j] - active_row[j];
      for (size_t i = 0; i < count; ++i) x[i * stream + row * size + j] += (1 + rows_factors[i]) * change;
    }
  });
}

void match_rms(ThreadPool& pool, const float* like, int rows, int size, float* x) {
  for_rows(pool, rows, 2 * size, [&](size_t row) {
    float* own = x + row * size;
    const float wanted = std::sqrt(mean_square(like + row * size, size));
    const float factor = wanted / std::sqrt(std::max(mean_square(own, size), 1e-5f));
    for (int i = 0; i < size; ++i) own[i] *= factor;
  });
}

void cut_rows(ThreadPool& pool, float factor, int rows, int size, size_t stride, float* x) {
  for_rows(pool, rows, 3 * size, [&](size_t row) {
    float* own = x + row * stride;
    double sum = 0;
    for (int i = 0; i < size; ++i) sum += own[i];
    const double mean = sum / size;
    double squares = 0;
    for (int i = 0; i < size; ++i) squares += (own[i] - mean) * (own[i] - mean);
    const auto cut = static_cast<float>(mean + factor * std::sqrt(squares / size));
    // A NaN stays.
    for (int i = 0; i < size; ++i) own[i] = own[i] <= cut ? 0.0f : own[i] - cut;
  });
}

}  // namespace turbomind
