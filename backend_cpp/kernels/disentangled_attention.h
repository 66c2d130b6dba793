// Disentangled attention (He et al., 2021, arXiv 2006.03654; DeBERTa): a score is the sum of three products.
//
//   score(i, j) = scale (q_i . k_j + q_i . key_b + k_j . query_b), b = buckets[i - j]
//
// Rows of a span see all of it. A text's result depends on its own rows alone.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/heads_view.h"
#include "kernels/operation.h"
#include "kernels/paged_attention.h"

namespace turbomind {

struct DisentangledAttention {
  static constexpr std::string_view kName = "disentangled_attention";

  AttentionParams params;  // spans, whose cache is not used
  float scale = 1;
  HeadsView q;  // as many heads of k and v, of one size
  HeadsView k;
  HeadsView v;
  const float* queries = nullptr;  // [heads, buckets, head_dim], of the query_b
  const float* keys = nullptr;     // the same of the key_b
  // [2 reach + 1], not descending: of i - j from -reach to reach, the first and last beyond. The last is the highest.
  const int32_t* buckets = nullptr;
  int reach = 0;
  float* out = nullptr;  // [rows, heads, head_dim]

  void run(ThreadPool& pool) const;
};

}  // namespace turbomind
