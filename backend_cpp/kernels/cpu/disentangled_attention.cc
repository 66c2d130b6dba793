#include "kernels/disentangled_attention.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/sampling.h"

namespace turbomind {

namespace {

constexpr int kRowBlock = 48;  // queries whose scores are in cache at once

// x W^T of dense x [rows, inputs] and W [outputs, inputs].
std::vector<float> product(const float* x, int rows, const float* weight, int outputs, int inputs) {
  std::vector<float> y(static_cast<size_t>(rows) * static_cast<size_t>(outputs));
  multiply(kernels(), {.data = weight, .out_features = outputs, .in_features = inputs}, x, rows, y.data());
  return y;
}

// A head's rows of a span, [rows, head_dim], or transposed.
std::vector<float> dense_rows(const HeadsView& view, const AttentionSpan& span, int head, bool is_transposed) {
  const auto rows = static_cast<size_t>(span.count);
  const auto dim = static_cast<size_t>(view.head_dim);
  std::vector<float> dense(rows * dim);
  for (size_t r = 0; r < rows; ++r) {
    const float* source = view.head(static_cast<size_t>(span.first_token) + r, head);
    for (size_t d = 0; d < dim; ++d) dense[is_transposed ? d * rows + r : r * dim + d] = source[d];
  }
  return dense;
}

// scores [rows, count] of queries from `first` on become weights; returns the reciprocal of each row's sum.
std::vector<float> soften(std::vector<float>& scores, int count) {
  std::vector<float> factors;
  std::vector<float> sums(static_cast<size_t>(count + kLogitChunk - 1) / kLogitChunk);
  for (auto row = scores.begin(); row != scores.end(); row += count) {
    kernels().exp_weights(&*row, count, *std::max_element(row, row + count), 1, &*row, sums.data());
    float total = 0;
    for (const float sum : sums) total += sum;
    factors.push_back(1 / total);
  }
  return factors;
}

void attend(const DisentangledAttention& op, const AttentionSpan& span, int head) {
  const int count = span.count;
  const int dim = op.q.head_dim;
  const std::vector<float> queries = dense_rows(op.q, span, head, false);
  const std::vector<float> keys = dense_rows(op.k, span, head, false);
  const std::vector<float> values = dense_rows(op.v, span, head, true);
  // The buckets of the distances in this text.
  const auto bucket_of = [&](int distance) { return op.buckets[op.reach + std::clamp(distance, -op.reach, op.reach)]; };
  const int low = bucket_of(1 - count);
  const int used = bucket_of(count - 1) + 1 - low;
  const auto table = (static_cast<size_t>(head) * (op.buckets[2 * op.reach] + 1) + low) * dim;
  // [used, count]: neighbouring keys are mostly in one bucket.
  const std::vector<float> of_keys = product(op.queries + table, used, keys.data(), count, dim);
  for (int first = 0; first < count; first += kRowBlock) {
    const int rows = std::min(kRowBlock, count - first);
    const float* x = queries.data() + static_cast<size_t>(first) * dim;
    const std::vector<float> of_queries = product(x, rows, op.keys + table, used, dim);
    std::vector<float> scores = product(x, rows, keys.data(), count, dim);
    for (int r = 0; r < rows; ++r) {
      float* score = scores.data() + static_cast<size_t>(r) * count;
      for (int j = 0; j < count; ++j) {
        const auto bucket = static_cast<size_t>(bucket_of(first + r - j) - low);
        score[j] =
            op.scale * (score[j] + of_queries[static_cast<size_t>(r) * used + bucket] + of_keys[bucket * count + j]);
      }
    }
    const std::vector<float> factors = soften(scores, count);
    const std::vector<float> sums = product(scores.data(), rows, values.data(), dim, count);
    for (int r = 0; r < rows; ++r) {
      const auto row = static_cast<size_t>(span.first_token + first + r);
      float* out = op.out + (row * op.q.heads + head) * dim;
      for (int d = 0; d < dim; ++d) out[d] = factors[r] * sums[static_cast<size_t>(r) * dim + d];
    }
  }
}

}  // namespace

void DisentangledAttention::run(ThreadPool& pool) const {
  pool.parallel_for(params.span_count * q.heads,
                    [&](int task) { attend(*this, params.spans[task / q.heads], task % q.heads); });
}

}  // namespace turbomind
