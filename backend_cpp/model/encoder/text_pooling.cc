#include "model/encoder/text_pooling.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace turbomind {

namespace {

// Divides the sum of the rows, or of their multiples.
float divisor_of(TextPooling pooling, int count) {
  const auto number = static_cast<float>(count);
  if (pooling == TextPooling::kMeanSqrt) return std::sqrt(number);
  return pooling == TextPooling::kWeightedMean ? number * (number + 1) / 2 : number;
}

}  // namespace

void pool_text(TextPooling pooling, const float* rows, int count, int size, float* vector) {
  const auto width = static_cast<size_t>(size);
  const float* last = rows + static_cast<size_t>(count - 1) * width;
  if (takes_one(pooling)) {
    std::copy_n(pooling == TextPooling::kFirst ? rows : last, width, vector);
    return;
  }
  std::copy_n(rows, width, vector);
  for (int row = 1; row < count; ++row) {
    const float* x = rows + static_cast<size_t>(row) * width;
    const float weight = pooling == TextPooling::kWeightedMean ? static_cast<float>(row + 1) : 1.0f;
    if (pooling == TextPooling::kMax) {
      for (size_t i = 0; i < width; ++i) vector[i] = std::max(vector[i], x[i]);
    } else {
      for (size_t i = 0; i < width; ++i) vector[i] += weight * x[i];
    }
  }
  if (pooling == TextPooling::kMax) return;
  const float factor = 1 / divisor_of(pooling, count);
  for (size_t i = 0; i < width; ++i) vector[i] *= factor;
}

}  // namespace turbomind
