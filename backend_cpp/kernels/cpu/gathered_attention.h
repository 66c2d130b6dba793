// Attention of rows to keys and values that are gathered, partition by partition, out of where they lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/heads_view.h"
#include "kernels/paged_attention.h"

namespace turbomind {

// A row that attends to some of what it sees.
struct SparseRow {
  const AttentionSpan* span;
  size_t row;  // of the step
  int kv_len;  // tokens that it sees
};

// Rows of the spans that see more than `count` tokens.
std::vector<SparseRow> rows_beyond(const AttentionParams& params, int count);

class GatheredAttention {
 public:
  virtual ~GatheredAttention() = default;

  // Attends with all rows; a row's result does not depend on the others.
  void run(ThreadPool& pool, const std::vector<SparseRow>& rows) const;

 protected:
  // params: layout of the gathered keys and values, whose block_len is not read; softcap and sinks
  // out [rows, heads, value_dim]
  GatheredAttention(const AttentionParams& params, const HeadsView& q, float* out);

  // Keys of a row, the same for each key/value head.
  virtual int count(const SparseRow& row) const = 0;
  // Copies keys and values number first .. first + count into a block of `gathered()`.
  virtual void gather(const SparseRow& row, int kv_head, int first, int count, std::byte* block) const = 0;
  // Of one key/value head and a partition.
  const CacheLayout& gathered() const { return gathered_; }

 private:
  int partitions(const SparseRow& row) const { return (count(row) + kPartitionTokens - 1) / kPartitionTokens; }
  // Of a partition: sums of values [heads, value_dim], maxima [heads], sums of weights [heads].
  size_t partial_floats() const { return static_cast<size_t>(q_.heads) * (gathered_.value_dim + 2); }
  void compute(const SparseRow& row, int partition, float* partial) const;
  void compute_group(const SparseRow& row, int partition, int kv_head, float* partial) const;
  void merge(const SparseRow& row, const float* partials) const;

  AttentionParams params_;
  const HeadsView& q_;
  float* out_;
  CacheLayout gathered_;
};

// The positions of the `top_k` highest of `count` scores, ascending; of equal scores the first. NaN is the lowest.
void select_highest(const float* scores, int count, int top_k, int32_t* chosen);

// ---- rows of plain numbers in cache pages, float32 or bfloat16 ----

void write_row(CacheType type, const float* from, int size, std::byte* to);

// Calls use(d, number d of the row).
template <class Use>
void read_row(CacheType type, const std::byte* from, int size, Use&& use) {
  for (int d = 0; d < size; ++d) {
    use(d, type == CacheType::kFloat32 ? reinterpret_cast<const float*>(from)[d]
                                       : to_float(reinterpret_cast<const bf16*>(from)[d]));
  }
}

// Keys whose scores are computed at once: a multiple of the lanes.
inline constexpr int kKeysAtOnce = 64;

// Scores of `count` keys for rows first_row .. first_row + row_count of q, by index_scores: scores [row_count, stride].
//   key_of(i): the row that is key i; weights: of the first of the rows, [row_count, heads], weight_stride floats apart
//   stride: at least count, up to a multiple of kKeysAtOnce
void score_rows(CacheType type, int count, const std::function<const std::byte*(int)>& key_of, const HeadsView& q,
                size_t first_row, int row_count, const float* weights, size_t weight_stride, size_t stride,
                float* scores);

}  // namespace turbomind
