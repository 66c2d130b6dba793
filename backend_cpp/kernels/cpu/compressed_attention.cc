#include "kernels/compressed_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/for_rows.h"
#include "kernels/cpu/gathered_attention.h"
#include "kernels/cpu/isa.h"

namespace turbomind {

namespace {

// Rows of a sequence that share what is read of its keys.
constexpr int kRunRows = 16;

// Calls body(span, position, row of the step) of each row, on the pool.
template <class Body>
void on_rows(ThreadPool& pool, const CacheRows& rows, Body&& body) {
  const std::vector<Run> runs = runs_of(rows.params, kRunRows);
  pool.parallel_for(static_cast<int>(runs.size()), [&](int i) {
    const Run& run = runs[static_cast<size_t>(i)];
    for (int r = 0; r < run.row_count; ++r) {
      body(static_cast<size_t>(run.span - rows.params.spans), run.position(r),
           static_cast<size_t>(run.span->first_token + run.first_token + r));
    }
  });
}

// Weighted sum of values by the softmax of their gates, number by number; parts come one after the other.
class GatedSum {
 public:
  explicit GatedSum(int dim)
      : dim_(static_cast<size_t>(dim)),
        top_(dim_, -std::numeric_limits<float>::infinity()),
        weights_(dim_),
        sum_(dim_) {}

  // biases: null without gates
  void add(const std::vector<float>& values, const std::vector<float>& gates, const float* biases) {
    for (size_t d = 0; d < dim_; ++d) {
      const float gate = biases == nullptr ? 0 : gates[d] + biases[d];
      const float top = std::max(top_[d], gate);
      const float keep = std::exp(top_[d] - top);
      const float weight = std::exp(gate - top);
      weights_[d] = weights_[d] * keep + weight;
      sum_[d] = sum_[d] * keep + weight * values[d];
      top_[d] = top;
    }
  }

  std::vector<float>& result() {
    for (size_t d = 0; d < dim_; ++d) sum_[d] /= weights_[d];
    return sum_;
  }

 private:
  size_t dim_;
  std::vector<float> top_;
  std::vector<float> weights_;
  std::vector<float> sum_;
};

void compress(const CompressKeys& op, size_t span, int last, size_t row) {
  const CacheType type = op.from.params.layout.type;
  const int ratio = op.ratio;
  std::vector<float> values(static_cast<size_t>(op.dim));
  std::vector<float> gates(values.size());
  GatedSum sum(op.dim);
  const auto add = [&](int first, int series) {
    for (int i = 0; i < ratio; ++i) {
      const std::byte* from = op.from.at(span, first + i, op.from_offset + series * op.dim);
      read_row(type, from, op.dim, [&](int d, float value) { values[static_cast<size_t>(d)] = value; });
      if (op.biases == nullptr) {
        sum.add(values, gates, nullptr);
        continue;
      }
      const std::byte* gates_from = op.from.at(span, first + i, op.from_offset + (op.series + series) * op.dim);
      read_row(type, gates_from, op.dim, [&](int d, float value) { gates[static_cast<size_t>(d)] = value; });
      sum.add(values, gates, op.biases + static_cast<size_t>(i * op.series + series) * static_cast<size_t>(op.dim));
    }
  };
  const int first = last + 1 - ratio;
  if (op.series == 2 && first > 0) add(first - ratio, 0);
  add(first, op.series - 1);
  std::vector<float>& key = sum.result();
  if (op.norm.weight != nullptr) kernels().norm_row(op.norm, key.data(), op.dim, key.data());
  rope_row(op.starts, row, {key.data() + op.rotated, 1, 0, 1, 0, op.dim - op.rotated}, nullptr);
  write_row(op.to.params.layout.type, key.data(), op.dim, op.to.at(span, last, op.to_offset));
}

// Neighbours of `depth` tokens, or of keys' numbers, are adjacent (kernels/paged_attention.h).
template <class T, int depth>
void copy_key_and_value(const std::byte* from, int dim, int block_len, int slot, std::byte* keys, std::byte* values) {
  const auto* source = reinterpret_cast<const T*>(from);
  T* key = reinterpret_cast<T*>(keys) + static_cast<size_t>(slot) * depth;
  T* value = reinterpret_cast<T*>(values) + static_cast<size_t>(slot / depth) * dim * depth + slot % depth;
  for (int d = 0; d < dim; ++d) {
    key[static_cast<size_t>(d / depth) * block_len * depth + d % depth] = source[d];
    value[static_cast<size_t>(d) * depth] = source[d];
  }
}

AttentionParams gathered_params(const CompressedAttention& op) {
  AttentionParams params;
  params.layout = {op.last.params.layout.type, 1, 1, op.q.head_dim, op.q.head_dim, 0};
  params.num_heads = op.q.heads;
  params.sinks = op.sinks;
  return params;
}

class AttentionToCompressed final : public GatheredAttention {
 public:
  explicit AttentionToCompressed(const CompressedAttention& op)
      : GatheredAttention(gathered_params(op), op.q, op.out), op_(op) {}

 private:
  int last_count(const SparseRow& row) const { return std::min(op_.window, row.kv_len); }
  int compressed_count(const SparseRow& row) const {
    const int seen = op_.compressed.tokens > 0 ? row.kv_len / op_.compressed.tokens : 0;
    return op_.top_k > 0 ? std::min(op_.top_k, seen) : seen;
  }
  bool chooses(const SparseRow& row) const { return op_.top_k > 0 && row.kv_len / op_.compressed.tokens > op_.top_k; }

  int count(const SparseRow& row) const override { return last_count(row) + compressed_count(row); }

  void gather(const SparseRow& row, int, int first, int count, std::byte* block) const override {
    const CacheLayout& layout = gathered();
    std::byte* keys = block + layout.key_offset(0, 0);
    std::byte* values = block + layout.value_offset(0, 0);
    const auto copy = layout.type == CacheType::kFloat32 ? copy_key_and_value<float, 1> : copy_key_and_value<bf16, 2>;
    for (int i = 0; i < count; ++i) copy(key(row, first + i), layout.key_dim, layout.block_len, i, keys, values);
  }

  // Compressed keys, then those of the last tokens.
  const std::byte* key(const SparseRow& row, int index) const {
    const auto span = static_cast<size_t>(row.span - op_.last.params.spans);
    const int compressed = compressed_count(row);
    if (index >= compressed) {
      return op_.last.at(span, row.kv_len - last_count(row) + index - compressed, 0);
    }
    if (chooses(row)) index = op_.chosen[row.row * static_cast<size_t>(op_.top_k) + static_cast<size_t>(index)];
    return op_.compressed.at(span, (index + 1) * op_.compressed.tokens - 1, 0);
  }

  const CompressedAttention& op_;
};

}  // namespace

void WriteCacheRows::run(ThreadPool& pool) const {
  on_rows(pool, to, [&](size_t span, int position, size_t row) {
    write_row(to.params.layout.type, x.head(row, 0), x.head_dim, to.at(span, position, offset));
  });
}

void CompressKeys::run(ThreadPool& pool) const {
  on_rows(pool, from, [&](size_t span, int position, size_t row) {
    if ((position + 1) % ratio == 0) compress(*this, span, position, row);
  });
}

void ChooseCompressedKeys::run(ThreadPool& pool) const {
  const std::vector<Run> runs = runs_of(keys.params, kRunRows);
  pool.parallel_for(static_cast<int>(runs.size()), [&](int i) {
    static thread_local std::vector<float> scores;
    const Run& run = runs[static_cast<size_t>(i)];
    const int count = (run.position(run.row_count - 1) + 1) / ratio;
    if (count <= top_k) return;
    const size_t stride = (static_cast<size_t>(count) + kKeysAtOnce - 1) / kKeysAtOnce * kKeysAtOnce;
    scores.resize(stride * static_cast<size_t>(run.row_count));
    const auto first_row = static_cast<size_t>(run.span->first_token + run.first_token);
    const auto span = static_cast<size_t>(run.span - keys.params.spans);
    const auto key_of = [&](int key) { return keys.at(span, (key + 1) * ratio - 1, offset); };
    const auto heads = static_cast<size_t>(q.heads);
    const std::vector<float> ones(heads, 1.0F);
    score_rows(keys.params.layout.type, count, key_of, q, first_row, run.row_count,
               weights == nullptr ? ones.data() : weights + first_row * heads, weights == nullptr ? 0 : heads, stride,
               scores.data());
    for (int r = 0; r < run.row_count; ++r) {
      const int kv_len = run.position(r) + 1;
      if (kv_len / ratio <= top_k) continue;
      const int width = of_tokens ? top_k * ratio + ratio - 1 : top_k;
      int32_t* to = chosen + (first_row + static_cast<size_t>(r)) * static_cast<size_t>(width);
      select_highest(scores.data() + static_cast<size_t>(r) * stride, kv_len / ratio, top_k, to);
      if (!of_tokens) continue;
      for (int i = top_k - 1; i >= 0; --i) std::iota(to + i * ratio, to + (i + 1) * ratio, to[i] * ratio);
      std::iota(to + top_k * ratio, to + top_k * ratio + kv_len % ratio, kv_len / ratio * ratio);
    }
  });
}

void CompressedAttention::run(ThreadPool& pool) const {
  AttentionToCompressed(*this).run(pool, rows_beyond(last.params, 0));
}

}  // namespace turbomind
