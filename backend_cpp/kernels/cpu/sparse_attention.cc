#include "kernels/sparse_attention.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "kernels/cpu/for_rows.h"
#include "kernels/cpu/gathered_attention.h"
#include "kernels/cpu/isa.h"

namespace turbomind {

namespace {

// Scores that are held at a time.
constexpr size_t kMaxScores = size_t{1} << 22;
// Keys that one task scores.
constexpr int kTaskKeys = 512;

// The spans' leading rows, which attend to all that they see.
std::vector<AttentionSpan> dense_spans(const AttentionParams& params, int top_k) {
  std::vector<AttentionSpan> spans;
  for (int s = 0; s < params.span_count; ++s) {
    AttentionSpan span = params.spans[s];
    span.count = std::min(span.count, top_k - span.first_position);
    if (span.count > 0) spans.push_back(span);
  }
  return spans;
}

const std::byte* block_of(const AttentionParams& params, const AttentionSpan& span, int position) {
  return params.pool + span.blocks[position / params.layout.block_len] * params.layout.block_bytes();
}

// ---- the choice ----

// The index keys of a block [key_dim, block_len] as float32.
const float* read_keys(const AttentionParams& index, const std::byte* block, std::vector<float>& keys_as_float) {
  const CacheLayout& layout = index.layout;
  const std::byte* keys = block + layout.key_offset(index.layer, 0);
  if (layout.type == CacheType::kFloat32) return reinterpret_cast<const float*>(keys);
  const auto* pairs = reinterpret_cast<const bf16*>(keys);
  const auto tokens = static_cast<size_t>(layout.block_len);
  keys_as_float.resize(static_cast<size_t>(layout.key_dim) * tokens);
  for (size_t d = 0; d < static_cast<size_t>(layout.key_dim); ++d) {
    for (size_t t = 0; t < tokens; ++t)
      keys_as_float[d * tokens + t] = to_float(pairs[(d / 2 * tokens + t) * 2 + d % 2]);
  }
  return keys_as_float.data();
}

void score_keys(const AttentionParams& index, const SparseRow& row, int begin, const HeadsView& q, const float* weights,
                float* scores) {
  static thread_local std::vector<float> keys_as_float;
  const int block_len = index.layout.block_len;
  const int end = std::min(begin + kTaskKeys, row.kv_len);
  for (int position = begin; position < end; position += block_len) {
    const float* keys = read_keys(index, block_of(index, *row.span, position), keys_as_float);
    kernels().index_scores(keys, block_len, q.head_dim, q.head(row.row, 0), q.head_stride, q.heads,
                           weights + row.row * static_cast<size_t>(q.heads), scores + position);
  }
}

// ---- the chosen keys and values, next to each other ----

// Where the elements of a token are in a block of one layer and head.
struct TokenSlot {
  std::byte* keys;
  std::byte* values;
  size_t slot;
  size_t block_len;
};

TokenSlot slot_of(const CacheLayout& layout, int layer, int head, std::byte* block, int slot) {
  return {block + layout.key_offset(layer, head), block + layout.value_offset(layer, head), static_cast<size_t>(slot),
          static_cast<size_t>(layout.block_len)};
}

// Key elements, of which `depth` neighbours of T are adjacent: [dim / depth, block_len, depth].
template <class T, size_t depth>
void copy_key(const TokenSlot& from, const TokenSlot& to, size_t dim) {
  struct Neighbours {
    T elements[depth];
  };
  const auto* source = reinterpret_cast<const Neighbours*>(from.keys);
  auto* target = reinterpret_cast<Neighbours*>(to.keys);
  for (size_t d = 0; d < dim / depth; ++d) target[d * to.block_len + to.slot] = source[d * from.block_len + from.slot];
}

// Value elements [block_len / depth, dim, depth].
template <class T, size_t depth>
void copy_value(const TokenSlot& from, const TokenSlot& to, size_t dim) {
  const auto* source = reinterpret_cast<const T*>(from.values) + from.slot / depth * dim * depth + from.slot % depth;
  auto* target = reinterpret_cast<T*>(to.values) + to.slot / depth * dim * depth + to.slot % depth;
  for (size_t d = 0; d < dim; ++d) target[d * depth] = source[d * depth];
}

// Codes of 4 bits, two tokens in a byte.
void copy_quantized_value(const TokenSlot& from, const TokenSlot& to, size_t dim) {
  const auto* source = reinterpret_cast<const uint8_t*>(from.values) + from.slot / 2 * dim;
  auto* target = reinterpret_cast<uint8_t*>(to.values) + to.slot / 2 * dim;
  for (size_t d = 0; d < dim; ++d) {
    const auto rounded = static_cast<uint8_t>(source[d] >> 4 * (from.slot % 2) & 0x0F);
    target[d] = to.slot % 2 == 0 ? rounded : static_cast<uint8_t>((target[d] & 0x0F) | rounded << 4);
  }
}

// The scale and the zero point that follow a head's codes.
void copy_rounding(const std::byte* from, size_t from_len, size_t from_slot, std::byte* to, size_t to_len,
                   size_t to_slot) {
  std::copy_n(from + from_slot * sizeof(half), sizeof(half), to + to_slot * sizeof(half));
  to[to_len * sizeof(half) + to_slot] = from[from_len * sizeof(half) + from_slot];
}

void copy_token(const CacheLayout& from_layout, const TokenSlot& from, const CacheLayout& to_layout,
                const TokenSlot& to) {
  const auto key_dim = static_cast<size_t>(from_layout.key_dim);
  const auto value_dim = static_cast<size_t>(from_layout.value_dim);
  switch (from_layout.type) {
    case CacheType::kFloat32:
      copy_key<float, 1>(from, to, key_dim);
      return copy_value<float, 1>(from, to, value_dim);
    case CacheType::kBFloat16:
      copy_key<uint16_t, 2>(from, to, key_dim);
      return copy_value<uint16_t, 2>(from, to, value_dim);
    case CacheType::kInt8:
      copy_key<uint8_t, 1>(from, to, key_dim);
      copy_value<uint8_t, 1>(from, to, value_dim);
      break;
    case CacheType::kInt4:
      copy_key<uint8_t, 1>(from, to, key_dim / 2);
      copy_quantized_value(from, to, value_dim);
  }
  for (const auto& [source, target, dim] : {std::tuple(from.keys, to.keys, from_layout.key_dim),
                                            std::tuple(from.values, to.values, from_layout.value_dim)}) {
    copy_rounding(source + from_layout.quantized_bytes(dim), from.block_len, from.slot,
                  target + to_layout.quantized_bytes(dim), to.block_len, to.slot);
  }
}

// ---- attention to them ----

class AttentionToChosen final : public GatheredAttention {
 public:
  explicit AttentionToChosen(const SparseAttention& op) : GatheredAttention(op.params, op.q, op.out), op_(op) {}

 private:
  int count(const SparseRow& row) const override {
    if (op_.block == 1) return op_.top_k;
    return op_.top_k - op_.block + 1 + (op_.is_by_head ? row.kv_len - 1 : row.kv_len) % op_.block;
  }

  void gather(const SparseRow& row, int kv_head, int first, int count, std::byte* block) const override {
    const CacheLayout& layout = op_.params.layout;
    const size_t choice = op_.is_by_head ? row.row * static_cast<size_t>(layout.num_kv_heads) + kv_head : row.row;
    const int32_t* positions = op_.chosen + choice * static_cast<size_t>(op_.top_k) + first;
    for (int i = 0; i < count; ++i) {
      auto* from = const_cast<std::byte*>(block_of(op_.params, *row.span, positions[i]));
      copy_token(layout, slot_of(layout, op_.params.layer, kv_head, from, positions[i] % layout.block_len), gathered(),
                 slot_of(gathered(), 0, 0, block, i));
    }
  }

  const SparseAttention& op_;
};

}  // namespace

void ChooseKeys::run(ThreadPool& pool) const {
  static thread_local std::vector<float> scores;
  const std::vector<SparseRow> rows = rows_beyond(params, top_k);
  const auto block_len = static_cast<size_t>(params.layout.block_len);
  for (size_t first = 0; first < rows.size();) {
    // As many rows as the scores have space for; a row's begin at a multiple of a block.
    std::vector<size_t> begins;
    size_t size = 0;
    std::vector<std::pair<size_t, int>> tasks;  // row, first key
    size_t last = first;
    for (; last < rows.size(); ++last) {
      const size_t row_scores = (static_cast<size_t>(rows[last].kv_len) + block_len - 1) / block_len * block_len;
      if (last > first && size + row_scores > kMaxScores) break;
      begins.push_back(size);
      for (int key = 0; key < rows[last].kv_len; key += kTaskKeys) tasks.emplace_back(last, key);
      size += row_scores;
    }
    if (scores.size() < size) scores.resize(size);
    float* const of_all = scores.data();
    pool.parallel_for(static_cast<int>(tasks.size()), [&](int i) {
      const auto [row, key] = tasks[static_cast<size_t>(i)];
      score_keys(params, rows[row], key, q, weights, of_all + begins[row - first]);
    });
    pool.parallel_for(static_cast<int>(last - first), [&](int i) {
      const SparseRow& row = rows[first + static_cast<size_t>(i)];
      select_highest(of_all + begins[static_cast<size_t>(i)], row.kv_len, top_k,
                     chosen + row.row * static_cast<size_t>(top_k));
    });
    first = last;
  }
}

void ChooseBestBlocks::run(ThreadPool& pool) const {
  const std::vector<SparseRow> rows = rows_beyond(params, count * block);
  const auto dim = static_cast<size_t>(q.head_dim);
  pool.parallel_for(static_cast<int>(rows.size()) * q.heads, [&](int i) {
    static thread_local std::vector<float> scores, best, keys_as_float;
    const SparseRow& row = rows[static_cast<size_t>(i / q.heads)];
    const float* query = q.head(row.row, i % q.heads);
    // q . k is what two heads, q and -q, add up to by index_scores: relu(q . k) - relu(-q . k).
    std::vector<float> both(query, query + dim);
    std::transform(query, query + dim, std::back_inserter(both), std::negate<>());
    const float weights[] = {1, -1};
    const int block_len = params.layout.block_len;
    scores.resize(static_cast<size_t>((row.kv_len + block_len - 1) / block_len * block_len));
    for (int position = 0; position < row.kv_len; position += block_len) {
      const float* keys = read_keys(params, block_of(params, *row.span, position), keys_as_float);
      kernels().index_scores(keys, block_len, q.head_dim, both.data(), dim, 2, weights, scores.data() + position);
    }
    const int own = (row.kv_len - 1) / block;
    best.clear();
    for (int number = 0; number < own; ++number) {
      best.push_back(*std::max_element(scores.begin() + number * block, scores.begin() + (number + 1) * block));
    }
    std::vector<int32_t> numbers(static_cast<size_t>(count - 1));
    if (count > 1) select_highest(best.data(), own, count - 1, numbers.data());
    int32_t* to = chosen + (row.row * static_cast<size_t>(q.heads) + static_cast<size_t>(i % q.heads)) *
                               static_cast<size_t>(count * block);
    for (const int32_t number : numbers) {
      std::iota(to, to + block, number * block);
      to += block;
    }
    std::iota(to, to + row.kv_len - own * block, own * block);
  });
}

void SparseAttention::run(ThreadPool& pool) const {
  static thread_local std::vector<float> workspace;
  AttentionParams dense = params;
  const std::vector<AttentionSpan> spans = dense_spans(params, top_k);
  dense.spans = spans.data();
  dense.span_count = static_cast<int>(spans.size());
  const auto grow = [&](size_t size) {
    if (workspace.size() < size) workspace.resize(size);
    return workspace.data();
  };
  if (!spans.empty()) paged_attention(pool, dense, q, grow(attention_workspace_floats(dense)), out);

  AttentionToChosen(*this).run(pool, rows_beyond(params, top_k));
}

}  // namespace turbomind
