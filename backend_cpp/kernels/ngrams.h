// Embeddings of hashed n-grams (Qwen 4, 2026), which stay in the files of a checkpoint: a row is read when a token asks
// for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/thread_pool.h"
#include "kernels/operation.h"
#include "kernels/recurrence.h"

namespace turbomind {

// Rows [rows, size] of numbers in files, in parts.
struct StoredRows {
  struct Part {
    int file = -1;       // its descriptor
    int64_t offset = 0;  // of the first row
    int64_t end = 0;     // one past its last row, counted from the first part's first
    size_t row_bytes = 0;
    std::function<void(const std::byte* row, float* to)> decode;  // to [size]
  };

  int size = 0;
  const Part* parts = nullptr;
  int part_count = 0;

  // to [size] = row `index`, as float32; false where the file does not give it.
  bool read(int64_t index, float* to) const;
};

// Head h of the n-grams of n tokens, for each row of the step:
//
//   out = table[offset + (m[0] token[0] xor .. xor m[n - 1] token[n - 1]) mod sizes[n - 2][h]]
//
// where token[k] is the one k before the row's. From `end_token` on, backwards from the row before, and before the
// sequence, tokens are `end_token`. offset: the sum of the sizes before.
struct EmbedNgrams {
  static constexpr std::string_view kName = "embed_ngrams";

  StateMemory context;              // int32 [max_n - 1]: the tokens before a span's first row, oldest first
  const int32_t* tokens = nullptr;  // [rows]
  int max_n = 0;                    // of an n-gram; there are those of 2 tokens on
  int heads = 0;                    // of each n
  int32_t end_token = 0;
  const uint64_t* multipliers = nullptr;  // [max_n]
  const int32_t* sizes = nullptr;         // [max_n - 1, heads]
  StoredRows table;
  float* out = nullptr;  // [rows, max_n - 1, heads, table.size]

  void run(ThreadPool& pool) const;  // throws Error where a file does not give a row
};

// out = sigmoid(root(key . query / sqrt(size))) value, with root(x) = sign(x) sqrt(max(|x|, 1e-6)) and root(0) = 0
struct GateNgrams {
  static constexpr std::string_view kName = "gate_ngrams";

  int rows = 0;
  int count = 0;  // streams
  int size = 0;
  const float* keys = nullptr;     // [rows, count, size]
  const float* queries = nullptr;  // the same
  const float* values = nullptr;   // [rows, size]
  float* out = nullptr;            // [rows, count, size]

  void run(ThreadPool& pool) const;
};

}  // namespace turbomind
