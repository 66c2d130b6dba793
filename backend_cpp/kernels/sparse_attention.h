// Sparse attention (DeepSeek-V3.2-Exp, 2025): a token attends to the `top_k` tokens up to itself that a small scorer,
// the indexer, gives the highest scores. Where there are no more tokens than that, attention is dense.
//
// The score of token t for a row is sum_h w_h relu(q_h . k_t), with index queries q and head weights w of the row, and
// one index key k a token. Index keys are a cache of their own: CacheLayout with one head and value_dim 0, float32 or
// bfloat16.
//
// Where blocks of tokens are chosen (Qwen 4, 2026), a block's index key is the mean of its tokens' keys, normed, and
// rotated as its first token (kernels/compressed_attention.h). A token sees its own, incomplete block besides those
// chosen.
//
// Or a block counts as much as its best key (MiniMax-M3, 2026), each key/value head has an index query and a choice of
// its own, and a token's own block is one of the chosen.
//
// A row's choice depends on nothing but its own numbers and the keys, so it is the same alone, in a batch and in
// chunks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/heads_view.h"
#include "kernels/operation.h"
#include "kernels/paged_attention.h"

namespace turbomind {

// Chooses for each row that sees more than `top_k` tokens. Of equal scores the earlier token's is taken.
struct ChooseKeys {
  static constexpr std::string_view kName = "choose_keys";

  AttentionParams params;  // layout, pool, layer and spans of the index keys, those of this step's rows among them
  int top_k = 0;
  HeadsView q;                     // [rows, heads, key_dim], rotated
  const float* weights = nullptr;  // [rows, heads]
  int32_t* chosen = nullptr;       // [rows, top_k]: positions, ascending; of other rows it stays as it is

  void run(ThreadPool& pool) const;
};

// Chooses `count` blocks for each row that sees tokens of more, and each head of q: the row's own, and those with the
// highest q . k of a token.
struct ChooseBestBlocks {
  static constexpr std::string_view kName = "choose_best_blocks";

  AttentionParams params;  // as of ChooseKeys
  int count = 0;
  int block = 0;
  HeadsView q;                // [rows, heads, key_dim], rotated
  int32_t* chosen = nullptr;  // [rows, heads, count block]: positions, ascending

  void run(ThreadPool& pool) const;
};

// paged_attention of rows that see the chosen tokens alone, or, of up to `top_k`, all. No window, slopes or kv_lens. Of
// what a row does not see nothing is read.
struct SparseAttention {
  static constexpr std::string_view kName = "sparse_attention";

  AttentionParams params;
  int top_k = 0;  // of a row of `chosen`
  const int32_t* chosen = nullptr;
  HeadsView q;
  float* out = nullptr;
  int block = 1;  // a row that sees n tokens has top_k - block + 1 + n % block chosen ones
  // Each key/value head has a row of `chosen`, of top_k - block + 1 + (n - 1) % block tokens.
  bool is_by_head = false;

  void run(ThreadPool& pool) const;
};

}  // namespace turbomind
