// Attention to compressed keys against sums in float64, with NaN in all that a row must not read.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/compressed_attention.h"
#include "tests/check.h"

namespace turbomind::testing {

namespace {

constexpr int kTokens = 203;
constexpr int kBlock = 16;
constexpr int kRatio = 4;
constexpr int kDim = 18;
constexpr int kHeads = 3;
constexpr int kWindow = 10;
constexpr int kTopK = 5;
constexpr int kKeys = kTokens / kRatio;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_floats(std::mt19937& random, int count) {
  std::normal_distribution<float> normal;
  std::vector<float> numbers(static_cast<size_t>(count));
  for (float& number : numbers) number = normal(random);
  return numbers;
}

// Rows of one sequence, in the second layer of pages that are in no order.
struct Rows {
  std::vector<std::byte> memory;
  std::vector<int32_t> blocks;
  AttentionSpan span{0, kTokens, 0, nullptr};
  CacheRows rows;

  Rows(int width, int tokens, int first_row, std::mt19937& random) : blocks((kTokens + kBlock - 1) / kBlock) {
    std::iota(blocks.begin(), blocks.end(), 0);
    std::ranges::shuffle(blocks, random);
    span.blocks = blocks.data();
    rows.params.layout = {CacheType::kFloat32, 2, 1, width, 0, kBlock / tokens + first_row};
    rows.params.layer = 1;
    rows.params.spans = &span;
    rows.params.span_count = 1;
    rows.block_tokens = kBlock;
    rows.tokens = tokens;
    rows.first_row = first_row;
    memory.resize(blocks.size() * rows.params.layout.block_bytes());
    rows.params.pool = memory.data();
  }
  float* at(int last_token) const { return reinterpret_cast<float*>(rows.at(0, last_token, 0)); }
};

// Key number `index` of rows [tokens, key, 2 series of values, 2 of gates], by the definition.
std::vector<double> compressed(const std::vector<float>& rows, const std::vector<float>& biases,
                               const std::vector<float>& norm, int index) {
  const auto row = [&](int token, int part, int d) { return rows[(token * 5 + 1 + part) * kDim + d]; };
  std::vector<double> key(kDim);
  double squares = 0;
  for (int d = 0; d < kDim; ++d) {
    double weights = 0;
    for (int series = index == 0 ? 1 : 0; series < 2; ++series) {
      for (int i = 0; i < kRatio; ++i) {
        const int token = (index - 1 + series) * kRatio + i;
        const double weight = std::exp(double{row(token, 2 + series, d)} + biases[(i * 2 + series) * kDim + d]);
        weights += weight;
        key[d] += weight * row(token, series, d);
      }
    }
    key[d] /= weights;
    squares += key[d] * key[d];
  }
  for (int d = 0; d < kDim; ++d) key[d] *= norm[d] / std::sqrt(squares / kDim + 1e-6);
  return key;
}

double dot(const float* q, const std::vector<double>& key) {
  double sum = 0;
  for (int d = 0; d < kDim; ++d) sum += q[d] * key[d];
  return sum;
}

}  // namespace

TEST(compressed_keys_are_chosen_and_attended_to_as_defined) {
  std::mt19937 random(7);
  ThreadPool pool(2);
  Rows last(5 * kDim, 1, 0, random);
  Rows keys(kDim, kRatio, 3, random);
  std::vector<float> rows = random_floats(random, kTokens * 5 * kDim);
  const std::vector<float> biases = random_floats(random, kRatio * 2 * kDim);
  const std::vector<float> norm = random_floats(random, kDim);
  WriteCacheRows{last.rows, 0, rows_view(rows.data(), kTokens, 5 * kDim)}.run(pool);
  CompressKeys{last.rows, kDim, keys.rows, 0, kRatio, 2, biases.data(), {NormKind::kRms, 1e-6F, norm.data(), nullptr},
               kDim,      {}}
      .run(pool);
  std::vector<std::vector<double>> expected;
  for (int i = 0; i < kKeys; ++i) {
    expected.push_back(compressed(rows, biases, norm, i));
    for (int d = 0; d < kDim; ++d) CHECK(std::fabs(keys.at((i + 1) * kRatio - 1)[d] - expected.back()[d]) < 1e-5);
  }

  std::vector<float> q = random_floats(random, kTokens * kHeads * kDim);
  const std::vector<float> weights = random_floats(random, kTokens * kHeads);
  const HeadsView queries{q.data(), kTokens, kHeads * kDim, kHeads, kDim, kDim};
  std::vector<int32_t> chosen(kTokens * kTopK, -1);
  ChooseCompressedKeys{keys.rows, 0, kRatio, kTopK, queries, weights.data(), chosen.data()}.run(pool);
  const int row = kTokens - 1;
  std::vector<int> order(kKeys);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](int key) {
    double score = 0;
    for (int h = 0; h < kHeads; ++h)
      score += weights[row * kHeads + h] * std::max(0.0, dot(queries.head(row, h), expected[key]));
    return score;
  });
  std::vector<int> best(order.begin(), order.begin() + kTopK);
  std::ranges::sort(best);
  CHECK(std::equal(best.begin(), best.end(), chosen.begin() + row * kTopK));
  CHECK(chosen[(kTopK * kRatio - 1) * kTopK] == -1);  // that row sees no more keys than it may choose

  for (int key = 0; key < kKeys; ++key) {
    if (!std::ranges::binary_search(best, key)) std::fill_n(keys.at((key + 1) * kRatio - 1), kDim, kNan);
  }
  for (int token = 0; token < kTokens - kWindow; ++token) std::fill_n(last.at(token), 5 * kDim, kNan);
  last.span = {row, 1, row, last.blocks.data()};
  const std::vector<float> sinks = random_floats(random, kHeads);
  std::vector<float> out(kTokens * kHeads * kDim);
  CompressedAttention{last.rows, kWindow, keys.rows, kTopK, chosen.data(), sinks.data(), queries, out.data()}.run(pool);
  for (int token = kTokens - kWindow; token < kTokens; ++token) {
    expected.emplace_back(rows.begin() + token * 5 * kDim, rows.begin() + (token * 5 + 1) * kDim);
    best.push_back(static_cast<int>(expected.size()) - 1);
  }
  for (int h = 0; h < kHeads; ++h) {
    std::vector<double> sum(kDim);
    double total = std::exp(double{sinks[h]});
    for (const int key : best) {
      const double weight = std::exp(dot(queries.head(row, h), expected[key]));
      total += weight;
      for (int d = 0; d < kDim; ++d) sum[d] += weight * expected[key][d];
    }
    for (int d = 0; d < kDim; ++d) CHECK(std::fabs(out[(row * kHeads + h) * kDim + d] - sum[d] / total) < 1e-4);
  }
}

}  // namespace turbomind::testing
