#include "engine/generation/log_probabilities.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace turbomind {

namespace {

// log of the sum of exp(logits), in double.
double log_sum_exp(const float* logits, int vocab_size) {
  const double largest = *std::max_element(logits, logits + vocab_size);
  double sum = 0;
  for (int i = 0; i < vocab_size; ++i) sum += std::exp(logits[i] - largest);
  return largest + std::log(sum);
}

}  // namespace

TokenLogprobs log_probabilities(const float* logits, int vocab_size, int32_t token, int top) {
  const double normaliser = log_sum_exp(logits, vocab_size);
  const auto log_p = [&](int32_t id) { return static_cast<float>(logits[id] - normaliser); };
  TokenLogprobs result{log_p(token), {}};
  std::vector<int32_t> ids(static_cast<size_t>(top > 0 ? vocab_size : 0));
  std::iota(ids.begin(), ids.end(), 0);
  const auto count = static_cast<ptrdiff_t>(std::min(top, vocab_size));
  std::partial_sort(ids.begin(), ids.begin() + count, ids.end(),
                    [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  for (ptrdiff_t i = 0; i < count; ++i)
    result.top.emplace_back(ids[static_cast<size_t>(i)], log_p(ids[static_cast<size_t>(i)]));
  return result;
}

double negative_log_probability(const float* logits, int vocab_size, int32_t token) {
  return log_sum_exp(logits, vocab_size) - logits[token];
}

}  // namespace turbomind
