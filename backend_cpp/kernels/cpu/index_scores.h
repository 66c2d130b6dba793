// Scores of the indexer of sparse attention (kernels/sparse_attention.h). Included by kernels_isa.cc only.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/cpu/simd.h"

namespace turbomind::TM_ISA {

// Heads whose products are held in registers at a time.
inline constexpr int kIndexHeads = 8;

template <int heads>
inline Vec add_index_heads(const float* keys, int tokens, int dim, const float* q, size_t stride, const float* weights,
                           Vec total) {
  Vec products[heads];
  for (Vec& product : products) product = zero();
  for (int d = 0; d < dim; ++d) {
    const Vec key = load(keys + static_cast<size_t>(d) * tokens);
    for (int h = 0; h < heads; ++h) products[h] = fma(broadcast(q[h * stride + d]), key, products[h]);
  }
  for (int h = 0; h < heads; ++h) total = fma(broadcast(weights[h]), max(products[h], zero()), total);
  return total;
}

inline void index_scores(const float* keys, int tokens, int dim, const float* q, size_t stride, int heads,
                         const float* weights, float* scores) {
  for (int t = 0; t < tokens; t += kLanes) {
    Vec total = zero();
    int head = 0;
    for (; head + kIndexHeads <= heads; head += kIndexHeads) {
      total = add_index_heads<kIndexHeads>(keys + t, tokens, dim, q + head * stride, stride, weights + head, total);
    }
    for (; head < heads; ++head) {
      total = add_index_heads<1>(keys + t, tokens, dim, q + head * stride, stride, weights + head, total);
    }
    store(scores + t, total);
  }
}

}  // namespace turbomind::TM_ISA
