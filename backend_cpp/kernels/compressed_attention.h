// Attention to compressed keys (DeepSeek-V4, 2026): a token attends to the last tokens one by one, and to all before
// through keys that stand for `ratio` tokens each. A key is its value too.
//
// A compressed key is the sum of its tokens' values, each number weighted by the softmax, over the tokens, of their
// gates and a bias of the place; normed, and rotated as its first token. With two series it is made of its own tokens'
// second series and the first one of the `ratio` tokens before. Without gates it is their mean, as the index keys of
// blocks are (Qwen 4, 2026). A token sees the keys of whole runs of `ratio` tokens.
//
// Rows are plain numbers in cache pages: a token's key with values and gates that are yet to be compressed, and
// compressed keys. What a row of a step gets depends on itself and on those alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/thread_pool.h"
#include "kernels/heads_view.h"
#include "kernels/norm.h"
#include "kernels/operation.h"
#include "kernels/paged_attention.h"
#include "kernels/rope.h"

namespace turbomind {

// Rows of a layer in cache pages. A row stands for `tokens` tokens and lies where the last of them does.
struct CacheRows {
  // layout: float32 or bfloat16, one head, value_dim 0, key_dim numbers in a row, block_len rows in a block of this and
  // other layers; pool, layer and spans
  AttentionParams params;
  int block_tokens = 0;  // tokens of a block
  int tokens = 1;
  int first_row = 0;  // of the layer, in a block

  // Number `offset` of the row of `last_token`, of the sequence of a span.
  std::byte* at(size_t span, int last_token, int offset) const {
    const CacheLayout& layout = params.layout;
    const int index = first_row + last_token % block_tokens / tokens;
    return params.pool + params.spans[span].blocks[last_token / block_tokens] * layout.block_bytes() +
           layout.key_offset(params.layer, 0) +
           static_cast<size_t>(index * layout.key_dim + offset) * bits_of(layout.type) / 8;
  }
};

// Writes numbers `offset` .. of the rows of a step's tokens.
struct WriteCacheRows {
  static constexpr std::string_view kName = "write_cache_rows";

  CacheRows to;
  int offset = 0;
  HeadsView x;  // [rows, 1, numbers]

  std::array<CacheRows*, 1> cache_rows() { return {&to}; }
  void run(ThreadPool& pool) const;
};

// Makes the compressed keys, of `ratio` tokens each, that end with a token of a step.
struct CompressKeys {
  static constexpr std::string_view kName = "compress_keys";

  CacheRows from;
  int from_offset = 0;  // of values [series, dim] and gates [series, dim]
  CacheRows to;
  int to_offset = 0;
  int ratio = 1;
  int series = 1;
  const float* biases = nullptr;  // of gates [ratio, series, dim]; null: there are no gates
  NormWeight norm;                // without a weight: none
  int dim = 0;
  RopeTable starts;  // of rows that end a key, by the position of its first token
  int rotated = 0;   // the first number that turns

  std::array<CacheRows*, 2> cache_rows() { return {&from, &to}; }
  void run(ThreadPool& pool) const;
};

// Chooses `top_k` of a row's compressed keys, for rows that see more, by sum_h w_h relu(q_h . k). Of equal scores the
// earlier key's is taken.
struct ChooseCompressedKeys {
  static constexpr std::string_view kName = "choose_compressed_keys";

  CacheRows keys;
  int offset = 0;  // of the index keys in their rows
  int ratio = 1;   // tokens that a key stands for
  int top_k = 0;
  HeadsView q;                     // [rows, heads, index dim], rotated
  const float* weights = nullptr;  // [rows, heads]; null: 1
  // Ascending; of other rows it stays as it is. [rows, top_k]: numbers of keys; or of_tokens, [rows, top_k ratio +
  // ratio
  // - 1]: positions of the tokens that they stand for, and of those after the last key.
  int32_t* chosen = nullptr;
  bool of_tokens = false;

  std::array<CacheRows*, 1> cache_rows() { return {&keys}; }
  void run(ThreadPool& pool) const;
};

struct CompressedAttention {
  static constexpr std::string_view kName = "compressed_attention";

  CacheRows last;        // of which the first q.head_dim numbers are the keys
  int window = 0;        // tokens that a row sees one by one, its own included
  CacheRows compressed;  // with `tokens` 0: there are none
  int top_k = 0;         // of `chosen`; 0: a row attends to all compressed keys that it sees
  const int32_t* chosen = nullptr;
  const float* sinks = nullptr;  // as of AttentionParams
  HeadsView q;                   // [rows, heads, dim], rotated and scaled
  float* out = nullptr;          // [rows, heads, dim]

  std::array<CacheRows*, 2> cache_rows() { return {&last, &compressed}; }
  void run(ThreadPool& pool) const;
};

}  // namespace turbomind
