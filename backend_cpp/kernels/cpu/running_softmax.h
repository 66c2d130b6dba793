// The softmax of queries over keys that come in parts.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace turbomind {

struct RunningSoftmax {
  float* out;  // [count, value_dim], zeros at first
  std::vector<float> maximum;
  std::vector<float> sum;

  RunningSoftmax(float* target, int count)
      : out(target), maximum(count, -std::numeric_limits<float>::infinity()), sum(count, 0.0f) {}

  // Adds a part: its unnormalised sum of values, its largest score and its sum of weights.
  void merge(int query, int value_dim, const float* partial, float partial_maximum, float partial_sum) {
    if (partial_sum == 0) return;  // the query sees nothing of the part
    float* o = out + static_cast<size_t>(query) * value_dim;
    const float top = std::max(maximum[query], partial_maximum);
    const float keep = std::exp(maximum[query] - top);
    const float gain = std::exp(partial_maximum - top);
    for (int d = 0; d < value_dim; ++d) o[d] = o[d] * keep + partial[d] * gain;
    sum[query] = sum[query] * keep + partial_sum * gain;
    maximum[query] = top;
  }

  // `sink`: a logit that takes part and has no value; or null.
  void normalise(int query, int value_dim, const float* sink) {
    float* o = out + static_cast<size_t>(query) * value_dim;
    float factor = 1.0f / sum[query];
    if (sink != nullptr) {
      const float top = std::max(maximum[query], *sink);
      const float keep = std::exp(maximum[query] - top);
      factor = keep / (sum[query] * keep + std::exp(*sink - top));
    }
    for (int d = 0; d < value_dim; ++d) o[d] *= factor;
  }
};

}  // namespace turbomind
