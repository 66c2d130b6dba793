#include "kernels/cpu/gathered_attention.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/running_softmax.h"

namespace turbomind {

namespace {

// Up to this many rows, the partitions of a row are spread over threads; more rows are tasks enough.
constexpr size_t kSplitRows = 4;

}  // namespace

std::vector<SparseRow> rows_beyond(const AttentionParams& params, int count) {
  std::vector<SparseRow> rows;
  for (int s = 0; s < params.span_count; ++s) {
    const AttentionSpan& span = params.spans[s];
    for (int r = std::max(0, count - span.first_position); r < span.count; ++r) {
      rows.push_back({&span, static_cast<size_t>(span.first_token + r), span.first_position + r + 1});
    }
  }
  return rows;
}

GatheredAttention::GatheredAttention(const AttentionParams& params, const HeadsView& q, float* out)
    : params_(params), q_(q), out_(out), gathered_(params.layout) {
  gathered_.num_layers = 1;
  gathered_.num_kv_heads = 1;
  gathered_.block_len = kPartitionTokens;
  gathered_.page_bytes = 0;
}

void GatheredAttention::run(ThreadPool& pool, const std::vector<SparseRow>& rows) const {
  const size_t partial = partial_floats();
  if (rows.size() > kSplitRows) {
    return pool.parallel_for(static_cast<int>(rows.size()), [&](int i) {
      static thread_local std::vector<float> partials;
      const SparseRow& row = rows[static_cast<size_t>(i)];
      partials.resize(static_cast<size_t>(partitions(row)) * partial);
      for (int p = 0; p < partitions(row); ++p) compute(row, p, partials.data() + static_cast<size_t>(p) * partial);
      merge(row, partials.data());
    });
  }
  static thread_local std::vector<float> workspace;
  std::vector<std::pair<size_t, int>> tasks;  // row, partition
  std::vector<size_t> begins;
  for (size_t row = 0; row < rows.size(); ++row) {
    begins.push_back(tasks.size() * partial);
    for (int p = 0; p < partitions(rows[row]); ++p) tasks.emplace_back(row, p);
  }
  if (workspace.size() < tasks.size() * partial) workspace.resize(tasks.size() * partial);
  float* const partials = workspace.data();
  pool.parallel_for(static_cast<int>(tasks.size()), [&](int i) {
    const auto [row, partition] = tasks[static_cast<size_t>(i)];
    compute(rows[row], partition, partials + static_cast<size_t>(i) * partial);
  });
  for (size_t row = 0; row < rows.size(); ++row) merge(rows[row], partials + begins[row]);
}

void GatheredAttention::compute(const SparseRow& row, int partition, float* partial) const {
  for (int head = 0; head < params_.layout.num_kv_heads; ++head) compute_group(row, partition, head, partial);
}

// The query heads of one key/value head.
void GatheredAttention::compute_group(const SparseRow& row, int partition, int kv_head, float* partial) const {
  static thread_local std::vector<std::byte> block;
  block.resize(gathered_.block_bytes());
  const int first = partition * kPartitionTokens;
  const int count = std::clamp(this->count(row) - first, 0, kPartitionTokens);
  gather(row, kv_head, first, count, block.data());

  static thread_local std::vector<float> factors;
  const int heads = q_.heads / params_.layout.num_kv_heads;
  const int first_head = kv_head * heads;
  factors.resize(static_cast<size_t>(heads) * (q_.head_dim + 2));
  for (int h = 0; h < heads; ++h) {
    std::copy_n(q_.head(row.row, first_head + h), q_.head_dim, factors.data() + static_cast<size_t>(h) * q_.head_dim);
  }
  const std::vector<int32_t> begins(static_cast<size_t>(heads), 0);
  const std::vector<int32_t> ends(static_cast<size_t>(heads), count);
  float* sums_of_factors = factors.data() + static_cast<size_t>(heads) * q_.head_dim;
  float* maximum = partial + static_cast<size_t>(q_.heads) * gathered_.value_dim + first_head;
  AttentionParams gathered_params = params_;
  gathered_params.layout = gathered_;
  gathered_params.pool = block.data();
  gathered_params.layer = 0;
  const int32_t only_block = 0;
  kernels().compute_attention(
      gathered_params, 0, &only_block, 0, count,
      {heads, begins.data(), ends.data(), nullptr, nullptr, factors.data(), sums_of_factors, sums_of_factors + heads,
       partial + static_cast<size_t>(first_head) * gathered_.value_dim, maximum, maximum + q_.heads});
}

void GatheredAttention::merge(const SparseRow& row, const float* partials) const {
  const int heads = q_.heads;
  const int value_dim = gathered_.value_dim;
  RunningSoftmax running(out_ + row.row * static_cast<size_t>(heads) * value_dim, heads);
  std::fill_n(running.out, static_cast<size_t>(heads) * value_dim, 0.0f);
  for (int p = 0; p < partitions(row); ++p, partials += partial_floats()) {
    const float* maximum = partials + static_cast<size_t>(heads) * value_dim;
    for (int h = 0; h < heads; ++h) {
      running.merge(h, value_dim, partials + static_cast<size_t>(h) * value_dim, maximum[h], maximum[heads + h]);
    }
  }
  for (int h = 0; h < heads; ++h) running.normalise(h, value_dim, params_.sinks ? params_.sinks + h : nullptr);
}

void select_highest(const float* scores, int count, int top_k, int32_t* chosen) {
  static thread_local std::vector<float> sorted;
  sorted.assign(scores, scores + count);
  for (float& score : sorted) {
    if (std::isnan(score)) score = -std::numeric_limits<float>::infinity();
  }
  std::nth_element(sorted.begin(), sorted.begin() + (top_k - 1), sorted.end(), std::greater<>());
  const float threshold = sorted[static_cast<size_t>(top_k) - 1];
  auto equal = std::count(sorted.begin(), sorted.begin() + top_k, threshold);  // that are taken of this score
  for (int position = 0, taken = 0; taken < top_k; ++position) {
    const float score = std::isnan(scores[position]) ? -std::numeric_limits<float>::infinity() : scores[position];
    if (score > threshold || (score == threshold && equal-- > 0)) chosen[taken++] = position;
  }
}

void write_row(CacheType type, const float* from, int size, std::byte* to) {
  if (type == CacheType::kFloat32) {
    std::copy_n(from, size, reinterpret_cast<float*>(to));
  } else {
    std::transform(from, from + size, reinterpret_cast<bf16*>(to), to_bf16);
  }
}

void score_rows(CacheType type, int count, const std::function<const std::byte*(int)>& key_of, const HeadsView& q,
                size_t first_row, int row_count, const float* weights, size_t weight_stride, size_t stride,
                float* scores) {
  static thread_local std::vector<float> keys;
  for (int begin = 0; begin < count; begin += kKeysAtOnce) {
    keys.assign(static_cast<size_t>(q.head_dim) * kKeysAtOnce, 0);
    for (int i = 0; i < std::min(kKeysAtOnce, count - begin); ++i) {
      read_row(type, key_of(begin + i), q.head_dim,
               [&](int d, float value) { keys[static_cast<size_t>(d * kKeysAtOnce + i)] = value; });
    }
    for (int r = 0; r < row_count; ++r) {
      kernels().index_scores(keys.data(), kKeysAtOnce, q.head_dim, q.head(first_row + static_cast<size_t>(r), 0),
                             q.head_stride, q.heads, weights + static_cast<size_t>(r) * weight_stride,
                             scores + static_cast<size_t>(r) * stride + begin);
    }
  }
}

}  // namespace turbomind
