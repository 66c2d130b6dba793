// Disentangled attention against sums in float64, with each instruction set.
#include "kernels/disentangled_attention.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/cpu/isa.h"
#include "tests/check.h"

namespace turbomind::testing {

namespace {

constexpr int kHeads = 3;
constexpr int kDim = 20;
constexpr int kReach = 40;
constexpr int kWidth = 3 * kHeads * kDim;  // queries, keys and values of a row
constexpr float kScale = 0.1F;

double dot(const float* a, const float* b) {
  double sum = 0;
  for (int d = 0; d < kDim; ++d) sum += double{a[d]} * b[d];
  return sum;
}

}  // namespace

TEST(scores_have_the_products_of_distances_too) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  const auto make = [&](size_t count) {
    std::vector<float> numbers(count);
    std::ranges::generate(numbers, [&] { return normal(random); });
    return numbers;
  };
  std::vector<int32_t> buckets;
  for (int distance = -kReach; distance <= kReach; ++distance) {  // one each up to 8, then in fours
    buckets.push_back(16 + (std::abs(distance) <= 8 ? distance : distance / 4 + (distance > 0 ? 6 : -6)));
  }
  const std::vector<AttentionSpan> spans{{0, 130, 0, nullptr}, {130, 1, 0, nullptr}, {131, 49, 0, nullptr}};
  const int rows = 180;
  std::vector<float> qkv = make(rows * kWidth);
  const size_t table = static_cast<size_t>(kHeads) * (buckets.back() + 1) * kDim;
  const std::vector<float> query_table = make(table);
  const std::vector<float> key_table = make(table);
  const auto part = [&](int number) {
    return HeadsView{qkv.data() + number * kHeads * kDim, rows, kWidth, kHeads, kDim, kDim};
  };
  AttentionParams params;
  params.spans = spans.data();
  params.span_count = static_cast<int>(spans.size());
  ThreadPool pool(2);
  const std::string usual = kernels().name;
  for (const std::string& isa : supported_isas()) {
    select_isa(isa);
    std::vector<float> out(static_cast<size_t>(rows) * kHeads * kDim);
    DisentangledAttention{params,           kScale,         part(0), part(1),   part(2), query_table.data(),
                          key_table.data(), buckets.data(), kReach,  out.data()}
        .run(pool);
    double furthest = 0;
    for (const AttentionSpan& span : spans) {
      for (int i = 0; i < span.count * kHeads; ++i) {
        const int h = i % kHeads;
        const auto row = static_cast<size_t>(span.first_token + i / kHeads);
        std::vector<double> expected(kDim, 0);
        double sum = 0;
        for (int j = 0; j < span.count; ++j) {
          const auto other = static_cast<size_t>(span.first_token + j);
          const int distance = std::clamp(i / kHeads - j, -kReach, kReach);
          const int bucket = (h * (buckets.back() + 1) + buckets[static_cast<size_t>(kReach + distance)]) * kDim;
          const float* query = part(0).head(row, h);
          const float* key = part(1).head(other, h);
          const double score = dot(query, key) + dot(query, &key_table[static_cast<size_t>(bucket)]) +
                               dot(key, &query_table[static_cast<size_t>(bucket)]);
          const double weight = std::exp(double{kScale} * score);
          sum += weight;
          for (int d = 0; d < kDim; ++d) expected[static_cast<size_t>(d)] += weight * part(2).head(other, h)[d];
        }
        for (int d = 0; d < kDim; ++d) {
          const double found = out[(row * kHeads + static_cast<size_t>(h)) * kDim + static_cast<size_t>(d)];
          furthest = std::max(furthest, std::abs(found - expected[static_cast<size_t>(d)] / sum));
        }
      }
    }
    CHECK(furthest < 1e-5);
  }
  select_isa(usual);
}

}  // namespace turbomind::testing
