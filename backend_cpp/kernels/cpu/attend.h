// Online-softmax attention of one row and one key/value head. Included by kernels_isa.cc only.
#pragma once

#include <algorithm>
#include <limits>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/simd.h"

namespace turbomind::TM_ISA {

// Vectors of tokens (scores) or of head dimensions (values) held in accumulators for each of up to kHeadTile heads.
inline constexpr int kVecTile = kRegisters == 32 ? 4 : 2;
inline constexpr int kHeadTile = 4;
inline constexpr int kMaxBlockLen = 512;

// scores[h, t] = sum_d query[h, d] k[d, t] for `tokens` tokens (rounded up to whole vectors; the block is that long).
template <int kHeads, class T>
inline void score_tile(const T* k, int block_len, int head_dim, int tokens, const float* query, float* scores) {
  constexpr int kStep = kVecTile * kLanes;
  for (int t = 0; t < tokens; t += kStep) {
    const int vecs = std::min(kVecTile, (block_len - t) / kLanes);
    Vec acc[kHeads][kVecTile];
    for (int h = 0; h < kHeads; ++h) {
      for (int v = 0; v < kVecTile; ++v) acc[h][v] = zero();
    }
    if (vecs == kVecTile) {
      for (int d = 0; d < head_dim; ++d) {
        const T* row = k + static_cast<size_t>(d) * block_len + t;
        Vec kv[kVecTile];
        for (int v = 0; v < kVecTile; ++v) kv[v] = load(row + v * kLanes);
        for (int h = 0; h < kHeads; ++h) {
          const Vec q = broadcast(query[h * head_dim + d]);
          for (int v = 0; v < kVecTile; ++v) acc[h][v] = fma(q, kv[v], acc[h][v]);
        }
      }
    } else {
      for (int d = 0; d < head_dim; ++d) {
        const T* row = k + static_cast<size_t>(d) * block_len + t;
        for (int v = 0; v < vecs; ++v) {
          const Vec kv = load(row + v * kLanes);
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
inline void value_tile(const T* v, int head_dim, int tokens, const float* p, const float* correction, float* out) {
  int d = 0;
  for (; d + kVecTile * kLanes <= head_dim; d += kVecTile * kLanes) {
    Vec acc[kHeads][kVecTile];
    for (int h = 0; h < kHeads; ++h) {
      for (int i = 0; i < kVecTile; ++i) {
        acc[h][i] = mul(load(out + h * head_dim + d + i * kLanes), broadcast(correction[h]));
      }
    }
    for (int t = 0; t < tokens; ++t) {
      const T* row = v + static_cast<size_t>(t) * head_dim + d;
      Vec value[kVecTile];
      for (int i = 0; i < kVecTile; ++i) value[i] = load(row + i * kLanes);
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
      for (int t = 0; t < tokens; ++t) {
        acc = fma(broadcast(p[h * kMaxBlockLen + t]), load_partial(v + static_cast<size_t>(t) * head_dim + d, count),
                  acc);
      }
      store_partial(target, acc, count);
    }
  }
}

template <int kHeads, class T>
inline void attend_heads(const AttentionParams& params, int kv_head, const float* query, const int32_t* blocks,
                         int begin, int end, float* out, float* maximum, float* sum) {
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
    const auto* base =
        reinterpret_cast<const T*>(params.pool + blocks[start / layout.block_len] * layout.block_bytes());
    score_tile<kHeads>(base + layout.key_offset(params.layer, kv_head), layout.block_len, head_dim, tokens, query,
                       scores);
    float correction[kHeads];
    for (int h = 0; h < kHeads; ++h) {
      float* p = scores + h * kMaxBlockLen;
      const int padded = (tokens + kLanes - 1) / kLanes * kLanes;
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
    }
    value_tile<kHeads>(base + layout.value_offset(params.layer, kv_head), head_dim, tokens, scores, correction, out);
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
  if (params.layout.dtype == DType::kFloat32) {
    attend_typed<float>(params, kv_head, group, query, blocks, begin, end, out, maximum, sum);
  } else {
    attend_typed<bf16>(params, kv_head, group, query, blocks, begin, end, out, maximum, sum);
  }
}

}  // namespace turbomind::TM_ISA
