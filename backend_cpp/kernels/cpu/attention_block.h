// Online-softmax attention of a tile of queries over one key/value head. Included by kernels_isa.cc only.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/cpu/cache_operand.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/simd.h"

namespace turbomind::TM_ISA {

// Vectors of tokens (scores) or of dimensions (values) held in accumulators for each query of a tile: 6 x 4 fills 32
// registers with room for the operands, 6 x 2 fills 16.
inline constexpr int kVecTile = kRegisters == 32 ? 4 : 2;
inline constexpr int kQueryTile = 6;
inline constexpr int kMaxBlockLen = kPartitionTokens;

// Loads kVecs operands, `stride` elements apart, and asks for the lines that lie `ahead` bytes after them.
template <int kVecs, class T>
inline void load_and_prefetch(const T* source, size_t stride, ptrdiff_t ahead, Operand<T> (&operands)[kVecs]) {
  constexpr size_t kLine = 64;
  for (int v = 0; v < kVecs; ++v) {
    const T* p = source + v * stride;
    if (v * stride * sizeof(T) % kLine == 0) __builtin_prefetch(reinterpret_cast<const std::byte*>(p) + ahead, 0, 2);
    operands[v].load(p);
  }
}

// scores[n, t] = sum_d queries[n, d] k[d, t] for kVecs vectors of tokens.
template <int kQueries, int kVecs, class T>
inline void score_vectors(const T* keys, int key_dim, int block_len, ptrdiff_t ahead, const float* queries,
                          float* scores) {
  constexpr int kDepth = Operand<T>::kDepth;
  Vec sums[kQueries][kVecs];
  for (auto& row : sums) {
    for (Vec& sum : row) sum = zero();
  }
  for (int d = 0; d < key_dim; d += kDepth) {
    Operand<T> key[kVecs];
    load_and_prefetch(keys + Operand<T>::offset(d, 0, block_len), Operand<T>::offset(0, kLanes, 0), ahead, key);
    for (int n = 0; n < kQueries; ++n) {
      for (int v = 0; v < kVecs; ++v) sums[n][v] = key[v].multiply_add(queries + n * key_dim + d, sums[n][v]);
    }
  }
  for (int n = 0; n < kQueries; ++n) {
    for (int v = 0; v < kVecs; ++v) store(scores + n * kMaxBlockLen + v * kLanes, sums[n][v]);
  }
}

// Scores of `tokens` tokens, rounded up to whole vectors; the block is that long.
template <int kQueries, class T>
inline void score_tile(const T* keys, int key_dim, int block_len, int tokens, ptrdiff_t ahead, const float* queries,
                       float* scores) {
  int t = 0;
  for (; t < tokens && t + kVecTile * kLanes <= block_len; t += kVecTile * kLanes) {
    score_vectors<kQueries, kVecTile>(keys + Operand<T>::offset(0, t, block_len), key_dim, block_len, ahead, queries,
                                      scores + t);
  }
  for (; t < tokens; t += kLanes) {
    score_vectors<kQueries, 1>(keys + Operand<T>::offset(0, t, block_len), key_dim, block_len, ahead, queries,
                               scores + t);
  }
}

// out[n, :] = out[n, :] correction[n] + sum_t weights[n, t] v[t, :] for kVecs vectors of dimensions; the last one has
// `lanes` of them.
template <int kQueries, int kVecs, class T>
inline void value_vectors(const T* values, int value_dim, int tokens, int lanes, ptrdiff_t ahead, const float* weights,
                          const float* correction, float* out) {
  constexpr int kDepth = Operand<T>::kDepth;
  const bool is_whole = lanes == kLanes;
  Vec sums[kQueries][kVecs];
  for (int n = 0; n < kQueries; ++n) {
    for (int v = 0; v < kVecs; ++v) {
      const float* target = out + static_cast<size_t>(n) * value_dim + v * kLanes;
      sums[n][v] = mul(is_whole ? load(target) : load_partial(target, lanes), broadcast(correction[n]));
    }
  }
  for (int t = 0; t < tokens; t += kDepth) {
    Operand<T> value[kVecs];
    const T* source = values + Operand<T>::offset(t, 0, value_dim);
    if (is_whole) {
      load_and_prefetch(source, Operand<T>::offset(0, kLanes, 0), ahead, value);
    } else {
      value[0].load_partial(source, lanes);  // of one vector
    }
    if (t + kDepth > tokens) {
      for (Operand<T>& operand : value) operand.keep_first();
    }
    for (int n = 0; n < kQueries; ++n) {
      for (int v = 0; v < kVecs; ++v) sums[n][v] = value[v].multiply_add(weights + n * kMaxBlockLen + t, sums[n][v]);
    }
  }
  for (int n = 0; n < kQueries; ++n) {
    for (int v = 0; v < kVecs; ++v) {
      float* target = out + static_cast<size_t>(n) * value_dim + v * kLanes;
      if (is_whole) {
        store(target, sums[n][v]);
      } else {
        store_partial(target, sums[n][v], lanes);
      }
    }
  }
}

template <int kQueries, class T>
inline void value_tile(const T* values, int value_dim, int tokens, ptrdiff_t ahead, const float* weights,
                       const float* correction, float* out) {
  int d = 0;
  for (; d + kVecTile * kLanes <= value_dim; d += kVecTile * kLanes) {
    value_vectors<kQueries, kVecTile>(values + Operand<T>::offset(0, d, value_dim), value_dim, tokens, kLanes, ahead,
                                      weights, correction, out + d);
  }
  for (; d < value_dim; d += kLanes) {
    value_vectors<kQueries, 1>(values + Operand<T>::offset(0, d, value_dim), value_dim, tokens,
                               std::min(kLanes, value_dim - d), ahead, weights, correction, out + d);
  }
}

template <class T>
inline constexpr bool kIsQuantized = std::is_same_v<T, Int8Value> || std::is_same_v<T, Int4Value>;

inline float sum_of(const float* x, int count) {
  float total = 0;
  for (int i = 0; i < count; ++i) total += x[i];
  return total;
}

// Scale and zero point of each token of a rounded head.
struct Rounding {
  const half* scales;
  const uint8_t* zeros;

  Rounding(const std::byte* head, const CacheLayout& layout, int dim)
      : scales(reinterpret_cast<const half*>(head + layout.quantized_bytes(dim))),
        zeros(reinterpret_cast<const uint8_t*>(scales + layout.block_len)) {}
};

// Scores of codes become scores of keys: q.k = scale (q.code - zero sum q).
inline void unround_scores(const Rounding& rounding, int padded, float query_sum, float* scores) {
  for (int t = 0; t < padded; t += kLanes) {
    const Vec shift = mul(to_floats(upcast_bytes(rounding.zeros + t)), broadcast(-query_sum));
    store(scores + t, mul(load(rounding.scales + t), add(load(scores + t), shift)));
  }
}

// Weights of values become weights of codes, p scale; returns what the zero points add to every element, sum -p scale
// zero.
inline float round_weights(const Rounding& rounding, int padded, float* p) {
  Vec total = zero();
  for (int t = 0; t < padded; t += kLanes) {
    const Vec weight = load(p + t);
    // A masked token's scale may never have been written.
    const Vec scaled = select_nonzero(weight, mul(weight, load(rounding.scales + t)));
    store(p + t, scaled);
    total = fma(scaled, mul(to_floats(upcast_bytes(rounding.zeros + t)), broadcast(-1.0f)), total);
  }
  return reduce_add(total);
}

// Scaling and cap of a score between q.k and the softmax.
struct ScoreRule {
  float softcap;
  float slope;
  const float* biases;  // of distance 0, or null
  int reach;            // of biases
  int position;         // of the query

  ScoreRule(const AttentionParams& params, const AttentionQueries& queries, int query)
      : softcap(params.softcap), slope(0), biases(nullptr), reach(params.bias_reach), position(0) {
    if (params.alibi_slopes == nullptr && params.distance_biases == nullptr) return;
    position = queries.positions[query];
    const auto head = static_cast<size_t>(queries.heads[query]);
    if (params.alibi_slopes != nullptr) slope = params.alibi_slopes[head];
    if (params.distance_biases != nullptr) biases = params.distance_biases + head * (2 * reach + 1) + reach;
  }

  void apply(int first_position, int padded, float* scores) const {
    if (softcap == 0 && slope == 0 && biases == nullptr) return;
    for (int t = 0; t < padded; t += kLanes) {
      Vec score = load(scores + t);
      const int distance = first_position + t - position;  // of the first of them
      if (softcap != 0) score = mul(tanh(mul(score, broadcast(1.0f / softcap))), broadcast(softcap));
      if (slope != 0) {
        const Vec after = add(iota(), broadcast(static_cast<float>(distance)));
        score = fma(absolute(after), broadcast(-slope), score);
      }
      if (biases != nullptr) score = add(score, biases_from(distance));
      store(scores + t, score);
    }
  }

 private:
  Vec biases_from(int distance) const {
    if (distance >= -reach && distance + kLanes - 1 <= reach) return load(biases + distance);
    alignas(64) float lane_biases[kLanes];
    for (int i = 0; i < kLanes; ++i) lane_biases[i] = biases[std::clamp(distance + i, -reach, reach)];
    return load(lane_biases);
  }
};

// Turns scores [0, padded) into softmax weights relative to the running maximum, with -infinity where the query does
// not look; returns the factor of what was summed before.
inline float soften(int low, int high, int padded, float* scores, float& maximum, float& sum) {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  std::fill(scores, scores + low, kNothing);
  std::fill(scores + high, scores + padded, kNothing);
  Vec top = load(scores);
  for (int t = kLanes; t < padded; t += kLanes) top = max(top, load(scores + t));
  const float new_maximum = std::max(maximum, reduce_max(top));
  const float shift = new_maximum == kNothing ? 0.0f : -new_maximum;
  Vec total = zero();
  for (int t = 0; t < padded; t += kLanes) {
    const Vec weight = exp(add(load(scores + t), broadcast(shift)));
    store(scores + t, weight);
    total = add(total, weight);
  }
  const float correction = maximum == kNothing ? 0.0f : std::exp(maximum + shift);
  sum = sum * correction + reduce_add(total);
  maximum = new_maximum;
  return correction;
}

// Whether a token that a query does not look at, but another one of its tile does, holds NaN or infinity: a weight of 0
// would not keep it out.
inline bool is_poisoned(const float* scores, int first, int last) {
  float probe = 0;
  for (int t = first; t < last; ++t) probe += scores[t] * 0.0f;
  return probe != 0;
}

// A head's part of a block of tokens from position `start`.
struct HeadBlock {
  const std::byte* keys;
  const std::byte* values;
  const std::byte* next_keys;  // of the block after it, or its own
  int start;
};

// One block of at most block_len tokens, for queries [first, first + kQueries). Values are fetched from memory while
// keys are multiplied, and the next block's keys while values are: the processor does not foresee the jumps.
template <int kQueries, class T>
inline void attention_tile(const AttentionParams& params, const HeadBlock& block, const AttentionQueries& queries,
                           int first) {
  const CacheLayout& layout = params.layout;
  int low[kQueries];
  int high[kQueries];
  int tokens = 0;
  for (int n = 0; n < kQueries; ++n) {
    high[n] = std::clamp(queries.ends[first + n] - block.start, 0, layout.block_len);
    low[n] = std::clamp(queries.begins[first + n] - block.start, 0, high[n]);
    if (low[n] == high[n]) low[n] = high[n] = 0;
    tokens = std::max(tokens, high[n]);
  }
  if (tokens == 0) return;  // outside every query's sight
  const int padded = (tokens + kLanes - 1) / kLanes * kLanes;

  alignas(64) float scores[kQueries * kMaxBlockLen];
  score_tile<kQueries>(reinterpret_cast<const T*>(block.keys), layout.key_dim, layout.block_len, tokens,
                       block.values - block.keys, queries.factors + static_cast<size_t>(first) * layout.key_dim,
                       scores);
  if constexpr (kQueries > 1) {
    bool poisoned = false;
    for (int n = 0; n < kQueries; ++n) {
      const float* row = scores + n * kMaxBlockLen;
      poisoned = poisoned || is_poisoned(row, 0, low[n]) || is_poisoned(row, high[n], tokens);
    }
    if (poisoned) {
      for (int n = 0; n < kQueries; ++n) attention_tile<1, T>(params, block, queries, first + n);
      return;
    }
  }
  float correction[kQueries];
  for (int n = 0; n < kQueries; ++n) {
    const int query = first + n;
    float* p = scores + n * kMaxBlockLen;
    if (kIsQuantized<T>)
      unround_scores(Rounding(block.keys, layout, layout.key_dim), padded, queries.sums_of_factors[query], p);
    const ScoreRule rule(params, queries, query);
    rule.apply(block.start, padded, p);
    correction[n] = soften(low[n], high[n], padded, p, queries.maximum[query], queries.sum[query]);
    if (kIsQuantized<T>) {
      const float added = round_weights(Rounding(block.values, layout, layout.value_dim), padded, p);
      queries.shifts[query] = queries.shifts[query] * correction[n] + added;
    }
    Operand<T>::prepare(p, padded);
  }
  value_tile<kQueries>(reinterpret_cast<const T*>(block.values), layout.value_dim, tokens,
                       block.next_keys - block.values, scores, correction,
                       queries.out + static_cast<size_t>(first) * layout.value_dim);
}

template <class T>
void attention_typed(const AttentionParams& params, int kv_head, const int32_t* blocks, int begin, int end,
                     const AttentionQueries& queries) {
  const CacheLayout& layout = params.layout;
  for (int n = 0; n < queries.count; ++n) {
    float* factors = queries.factors + static_cast<size_t>(n) * layout.key_dim;
    queries.sums_of_factors[n] = kIsQuantized<T> ? sum_of(factors, layout.key_dim) : 0.0f;
    Operand<T>::prepare(factors, layout.key_dim);
    queries.maximum[n] = -std::numeric_limits<float>::infinity();
    queries.sum[n] = 0;
    queries.shifts[n] = 0;
  }
  std::fill_n(queries.out, static_cast<size_t>(queries.count) * layout.value_dim, 0.0f);
  for (int start = begin / layout.block_len * layout.block_len; start < end; start += layout.block_len) {
    const int number = start / layout.block_len;
    const auto page = [&](int index) { return params.pool + blocks[index] * layout.block_bytes(); };
    const size_t keys = layout.key_offset(params.layer, kv_head);
    const HeadBlock block{page(number) + keys, page(number) + layout.value_offset(params.layer, kv_head),
                          page(start + layout.block_len < end ? number + 1 : number) + keys, start};
    int n = 0;
    for (; n + kQueryTile <= queries.count; n += kQueryTile) {
      attention_tile<kQueryTile, T>(params, block, queries, n);
    }
    // One tile for those that remain: the fewer times codes are widened, the better.
    switch (queries.count - n) {
      case 5:
        attention_tile<5, T>(params, block, queries, n);
        break;
      case 4:
        attention_tile<4, T>(params, block, queries, n);
        break;
      case 3:
        attention_tile<3, T>(params, block, queries, n);
        break;
      case 2:
        attention_tile<2, T>(params, block, queries, n);
        break;
      case 1:
        attention_tile<1, T>(params, block, queries, n);
        break;
      default:
        break;
    }
  }
  if (kIsQuantized<T>) {
    for (int n = 0; n < queries.count; ++n) {
      float* out = queries.out + static_cast<size_t>(n) * layout.value_dim;
      for (int d = 0; d < layout.value_dim; ++d) out[d] += queries.shifts[n];
    }
  }
}

// Calls visit(std::type_identity) of what a cache of a type holds.
template <class Visit>
inline void with_element_of(CacheType type, Visit&& visit) {
  switch (type) {
    case CacheType::kFloat32:
      return visit(std::type_identity<float>());
    case CacheType::kBFloat16:
      return visit(std::type_identity<bf16>());
    case CacheType::kInt8:
      return visit(std::type_identity<Int8Value>());
    case CacheType::kInt4:
      return visit(std::type_identity<Int4Value>());
  }
}

inline void compute_attention(const AttentionParams& params, int kv_head, const int32_t* blocks, int begin, int end,
                              const AttentionQueries& queries) {
  with_element_of(params.layout.type, [&]<class T>(std::type_identity<T>) {
    attention_typed<T>(params, kv_head, blocks, begin, end, queries);
  });
}

}  // namespace turbomind::TM_ISA
