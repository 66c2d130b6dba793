// Online-softmax attention of one row and one key/value head. Included by kernels_isa.cc only.
#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/simd.h"

namespace turbomind::TM_ISA {

// Vectors of tokens (scores) or of head dimensions (values) held in accumulators for each of up to kHeadTile heads.
inline constexpr int kVecTile = kRegisters == 32 ? 4 : 2;
inline constexpr int kHeadTile = 4;
inline constexpr int kMaxBlockLen = 512;

// Elements of a cached head as float lanes; codes as they are, without scale and zero point.
struct Code8 {
  uint8_t bits;
};
struct Code4 {
  uint8_t bits;  // two of them
};

inline Vec load(const Code8* p) {
  return to_floats(widen_bytes(reinterpret_cast<const uint8_t*>(p)));
}

template <class T>
struct Keys {
  const T* data;
  int block_len;
  Vec at(int d, int t) const { return load(data + static_cast<size_t>(d) * block_len + t); }
};

template <>
struct Keys<Code4> {
  const Code4* data;
  int block_len;
  Vec at(int d, int t) const {
    const IVec both = widen_bytes(reinterpret_cast<const uint8_t*>(data) + static_cast<size_t>(d / 2) * block_len + t);
    return to_floats(d % 2 == 0 ? low_halves(both) : high_halves(both));
  }
};

template <class T>
struct Values {
  const T* data;
  int head_dim;
  Vec at(int t, int d) const { return load(data + static_cast<size_t>(t) * head_dim + d); }
  Vec partial(int t, int d, int count) const {
    return load_partial(data + static_cast<size_t>(t) * head_dim + d, count);
  }
};

template <>
struct Values<Code4> {
  const Code4* data;
  int head_dim;
  Vec at(int t, int d) const {
    const int half_dim = head_dim / 2;
    const auto* row = reinterpret_cast<const uint8_t*>(data) + static_cast<size_t>(t) * half_dim;
    return d < half_dim ? to_floats(low_halves(widen_bytes(row + d)))
                        : to_floats(high_halves(widen_bytes(row + d - half_dim)));
  }
  Vec partial(int t, int d, int) const { return at(t, d); }  // head_dim is a multiple of 32
};

// scores[h, t] = sum_d query[h, d] k[d, t] for `tokens` tokens (rounded up to whole vectors; the block is that long).
template <int kHeads, class T>
inline void score_tile(const Keys<T>& keys, int head_dim, int tokens, const float* query, float* scores) {
  constexpr int kStep = kVecTile * kLanes;
  for (int t = 0; t < tokens; t += kStep) {
    const int vecs = std::min(kVecTile, (keys.block_len - t) / kLanes);
    Vec acc[kHeads][kVecTile];
    for (int h = 0; h < kHeads; ++h) {
      for (int v = 0; v < kVecTile; ++v) acc[h][v] = zero();
    }
    if (vecs == kVecTile) {
      for (int d = 0; d < head_dim; ++d) {
        Vec kv[kVecTile];
        for (int v = 0; v < kVecTile; ++v) kv[v] = keys.at(d, t + v * kLanes);
        for (int h = 0; h < kHeads; ++h) {
          const Vec q = broadcast(query[h * head_dim + d]);
          for (int v = 0; v < kVecTile; ++v) acc[h][v] = fma(q, kv[v], acc[h][v]);
        }
      }
    } else {
      for (int d = 0; d < head_dim; ++d) {
        for (int v = 0; v < vecs; ++v) {
          const Vec kv = keys.at(d, t + v * kLanes);
          for (int h = 0; h < kHeads; ++h) acc[h][v] = fma(broadcast(query[h * head_dim + d]), kv, acc[h][v]);
        }
      }
    }
    for (int h = 0; h < kHeads; ++h) {
      for (int v = 0; v < vecs; ++v) store(scores + h * kMaxBlockLen + t + v * kLanes, acc[h][v]);
    }
  }
}

// out[h, :] = out[h, :] correction[h] + sum_t p[h, t] v[t, :]
template <int kHeads, class T>
inline void value_tile(const Values<T>& values, int tokens, const float* p, const float* correction, float* out) {
  const int head_dim = values.head_dim;
  int d = 0;
  for (; d + kVecTile * kLanes <= head_dim; d += kVecTile * kLanes) {
    Vec acc[kHeads][kVecTile];
    for (int h = 0; h < kHeads; ++h) {
      for (int i = 0; i < kVecTile; ++i) {
        acc[h][i] = mul(load(out + h * head_dim + d + i * kLanes), broadcast(correction[h]));
      }
    }
    for (int t = 0; t < tokens; ++t) {
      Vec value[kVecTile];
      for (int i = 0; i < kVecTile; ++i) value[i] = values.at(t, d + i * kLanes);
      for (int h = 0; h < kHeads; ++h) {
        const Vec weight = broadcast(p[h * kMaxBlockLen + t]);
        for (int i = 0; i < kVecTile; ++i) acc[h][i] = fma(weight, value[i], acc[h][i]);
      }
    }
    for (int h = 0; h < kHeads; ++h) {
      for (int i = 0; i < kVecTile; ++i) store(out + h * head_dim + d + i * kLanes, acc[h][i]);
    }
  }
  for (; d < head_dim; d += kLanes) {
    const int count = std::min(kLanes, head_dim - d);
    for (int h = 0; h < kHeads; ++h) {
      float* target = out + h * head_dim + d;
      Vec acc = mul(load_partial(target, count), broadcast(correction[h]));
      for (int t = 0; t < tokens; ++t) acc = fma(broadcast(p[h * kMaxBlockLen + t]), values.partial(t, d, count), acc);
      store_partial(target, acc, count);
    }
  }
}

// Scale and zero point of each token of a rounded head.
struct Rounding {
  const half* scales;
  const uint8_t* zeros;

  Rounding(const std::byte* head, const CacheLayout& layout)
      : scales(reinterpret_cast<const half*>(head + layout.code_bytes())),
        zeros(reinterpret_cast<const uint8_t*>(scales + layout.block_len)) {}
};

// Scores of codes become scores of keys: q.k = scale (q.code - zero sum q).
inline void unround_scores(const Rounding& rounding, int padded, float query_sum, float* scores) {
  for (int t = 0; t < padded; t += kLanes) {
    const Vec shift = mul(to_floats(widen_bytes(rounding.zeros + t)), broadcast(-query_sum));
    store(scores + t, mul(load(rounding.scales + t), add(load(scores + t), shift)));
  }
}

// Weights of values become weights of codes, p scale; returns what the zero points add to every element, sum -p scale
// zero.
inline float round_weights(const Rounding& rounding, int tokens, float* p) {
  float total = 0;
  for (int t = 0; t < tokens; ++t) {
    p[t] *= to_float(rounding.scales[t]);
    total -= p[t] * static_cast<float>(rounding.zeros[t]);
  }
  return total;
}

inline float sum_of(const float* x, int count) {
  float total = 0;
  for (int i = 0; i < count; ++i) total += x[i];
  return total;
}

template <int kHeads, class T>
inline void attend_heads(const AttentionParams& params, int kv_head, const float* query, const int32_t* blocks,
                         int begin, int end, float* out, float* maximum, float* sum) {
  constexpr bool kIsRounded = std::is_same_v<T, Code8> || std::is_same_v<T, Code4>;
  const CacheLayout& layout = params.layout;
  const int head_dim = layout.head_dim;
  float scores[kHeads * kMaxBlockLen];
  std::fill(out, out + kHeads * head_dim, 0.0f);
  for (int h = 0; h < kHeads; ++h) {
    maximum[h] = -std::numeric_limits<float>::infinity();
    sum[h] = 0;
  }
  for (int start = begin; start < end; start += layout.block_len) {
    const int tokens = std::min(layout.block_len, end - start);
    const int padded = (tokens + kLanes - 1) / kLanes * kLanes;
    const std::byte* block = params.pool + blocks[start / layout.block_len] * layout.block_bytes();
    const std::byte* keys = block + layout.key_offset(params.layer, kv_head);
    const std::byte* values = block + layout.value_offset(params.layer, kv_head);
    score_tile<kHeads>(Keys<T>{reinterpret_cast<const T*>(keys), layout.block_len}, head_dim, tokens, query, scores);
    float correction[kHeads];
    float shift[kHeads];
    for (int h = 0; h < kHeads; ++h) {
      float* p = scores + h * kMaxBlockLen;
      if (kIsRounded) unround_scores(Rounding(keys, layout), padded, sum_of(query + h * head_dim, head_dim), p);
      std::fill(p + tokens, p + padded, -std::numeric_limits<float>::infinity());
      Vec top = load(p);
      for (int t = kLanes; t < padded; t += kLanes) top = max(top, load(p + t));
      const float new_maximum = std::max(maximum[h], reduce_max(top));
      Vec total = zero();
      for (int t = 0; t < padded; t += kLanes) {
        const Vec weight = exp(add(load(p + t), broadcast(-new_maximum)));
        store(p + t, weight);
        total = add(total, weight);
      }
      correction[h] = start == begin ? 0.0f : std::exp(maximum[h] - new_maximum);
      sum[h] = sum[h] * correction[h] + reduce_add(total);
      maximum[h] = new_maximum;
      shift[h] = 0;
      if (kIsRounded) {
        shift[h] = round_weights(Rounding(values, layout), tokens, p);
      }
    }
    value_tile<kHeads>(Values<T>{reinterpret_cast<const T*>(values), head_dim}, tokens, scores, correction, out);
    if (kIsRounded) {
      for (int h = 0; h < kHeads; ++h) {
        for (int d = 0; d < head_dim; ++d) out[h * head_dim + d] += shift[h];
      }
    }
  }
}

template <class T>
void attend_typed(const AttentionParams& params, int kv_head, int group, const float* query, const int32_t* blocks,
                  int begin, int end, float* out, float* maximum, float* sum) {
  const int head_dim = params.layout.head_dim;
  for (int h = 0; h < group;) {
    const int heads = std::min(kHeadTile, group - h);
    const float* q = query + h * head_dim;
    float* o = out + h * head_dim;
    switch (heads) {
      case 4:
        attend_heads<4, T>(params, kv_head, q, blocks, begin, end, o, maximum + h, sum + h);
        break;
      case 3:
        attend_heads<3, T>(params, kv_head, q, blocks, begin, end, o, maximum + h, sum + h);
        break;
      case 2:
        attend_heads<2, T>(params, kv_head, q, blocks, begin, end, o, maximum + h, sum + h);
        break;
      default:
        attend_heads<1, T>(params, kv_head, q, blocks, begin, end, o, maximum + h, sum + h);
    }
    h += heads;
  }
}

inline void attend(const AttentionParams& params, int kv_head, int group, const float* query, const int32_t* blocks,
                   int begin, int end, float* out, float* maximum, float* sum) {
  switch (params.layout.type) {
    case CacheType::kFloat32:
      attend_typed<float>(params, kv_head, group, query, blocks, begin, end, out, maximum, sum);
      break;
    case CacheType::kBFloat16:
      attend_typed<bf16>(params, kv_head, group, query, blocks, begin, end, out, maximum, sum);
      break;
    case CacheType::kInt8:
      attend_typed<Code8>(params, kv_head, group, query, blocks, begin, end, out, maximum, sum);
      break;
    case CacheType::kInt4:
      attend_typed<Code4>(params, kv_head, group, query, blocks, begin, end, out, maximum, sum);
  }
}

}  // namespace turbomind::TM_ISA
