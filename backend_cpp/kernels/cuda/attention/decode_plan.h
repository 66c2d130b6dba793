// Work partition of a decoding launch (attention_decode.cuh): warps of a block, splits of a context.
#pragma once

#include "kernels/cuda/attention/paged_attention.h"

namespace turbomind::cuda {

// Tokens that a warp computes at once: as many as fit in registers that fill its share of them.
constexpr int decode_tile(CacheType type) {
  return type == CacheType::kInt4 ? 32 : 16;
}
// Warps of a multiprocessor, whose registers they share, for that many query rows of a key head.
constexpr int decode_warps(int rows) {
  return rows <= 8 ? 16 : 8;
}
constexpr int kMaxDecodeRows = 16;
constexpr int kMinDecodeWarps = 4;

// Heads of 64 or 128, few query rows, and q.k is the score.
inline bool has_decode_kernel(const AttentionParams& params, int rows) {
  const CacheLayout& layout = params.layout;
  return layout.type != CacheType::kFloat32 && layout.key_dim == layout.value_dim &&
         (layout.key_dim == 64 || layout.key_dim == 128) && rows <= kMaxDecodeRows && params.softcap == 0 &&
         params.alibi_slopes == nullptr && params.distance_biases == nullptr;
}

struct DecodeCut {
  int warps;
  int splits;
};

// For `contexts` pairs of a span and a key head that see up to `seen` tokens, the cut that should take the least time.
DecodeCut decode_cut(const AttentionParams& params, int rows, int contexts, int seen);

}  // namespace turbomind::cuda
