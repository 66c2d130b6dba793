// Causal attention over a paged key/value cache, and the cache write that precedes it.
//
// Cache layout. A block holds `block_len` consecutive tokens of one sequence for all layers. Inside a block, per layer
// and key/value head, keys are stored transposed and values plainly, so that neighbouring lanes are neighbouring tokens
// for scores and neighbouring dimensions for values:
//   float32    k [key_dim, block_len]            v [block_len, value_dim]
//   bfloat16   k [key_dim / 2, block_len, 2]     v [block_len / 2, value_dim, 2]
//   int8       k [key_dim, block_len]            v [block_len, value_dim]
//   int4       k [key_dim / 2, block_len]        v [block_len / 2, value_dim]     two neighbours in a byte, first low
// The two neighbours are along the axis that is summed over. Block b starts at pool + b * block_bytes; all k of a layer
// precede its v.
//
// int8 and int4 caches hold, for each head and token, x = scale (code - zero) with a half-precision scale and an 8-bit
// zero point that make the range of the head's values, and 0, representable; after the codes of a head are scale
// [block_len] and zero [block_len]. Quantized values are upcast in registers; scales and zero points act on scores and
// weights, not on elements.
//
// Arithmetic. Scores, softmax and sums are float32; where the instruction set multiplies pairs of bfloat16
// (avx512bf16), queries and softmax weights over a bfloat16 cache are rounded to bfloat16 too, relative error 2^-8
// each; on tiles (amx) they are so over int8 and int4 caches as well. A row's keys are visited in partitions of
// kPartitionTokens, block by block, at absolute positions, and the partitions are merged in order; the result is
// bitwise independent of the batch, of prompt chunking, and of how partitions are spread over threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/heads_view.h"
#include "kernels/rope.h"
#include "kernels/types.h"

namespace turbomind {

inline constexpr int kPartitionTokens = 512;

enum class CacheType : uint8_t { kFloat32, kBFloat16, kInt8, kInt4 };

constexpr int bits_of(CacheType type) {
  switch (type) {
    case CacheType::kFloat32:
      return 32;
    case CacheType::kBFloat16:
      return 16;
    case CacheType::kInt8:
      return 8;
    case CacheType::kInt4:
      return 4;
  }
  return 32;
}

// Its functions are constexpr so that CUDA kernels can call them.
struct CacheLayout {
  CacheType type = CacheType::kFloat32;
  int num_layers = 0;
  int num_kv_heads = 0;
  int key_dim = 0;        // even
  int value_dim = 0;      // any
  int block_len = 0;      // a multiple of 16 that divides kPartitionTokens
  size_t page_bytes = 0;  // from one block to the next; 0: as much as its layers take

  constexpr bool is_quantized() const { return type == CacheType::kInt8 || type == CacheType::kInt4; }
  // Sizes and offsets in bytes.
  constexpr size_t quantized_bytes(int dim) const { return static_cast<size_t>(block_len) * dim * bits_of(type) / 8; }
  constexpr size_t head_bytes(int dim) const {
    return quantized_bytes(dim) + (is_quantized() ? static_cast<size_t>(block_len) * 3 : 0);
  }
  constexpr size_t layer_bytes() const { return (head_bytes(key_dim) + head_bytes(value_dim)) * num_kv_heads; }
  constexpr size_t block_bytes() const { return page_bytes > 0 ? page_bytes : layer_bytes() * num_layers; }
  constexpr size_t key_offset(int layer, int head) const { return layer * layer_bytes() + head * head_bytes(key_dim); }
  constexpr size_t value_offset(int layer, int head) const {
    return key_offset(layer, num_kv_heads) + head * head_bytes(value_dim);
  }
};

// Rows of one sequence in this step: `count` rows from `first_token`, at positions first_position, first_position + 1,
// ...
struct AttentionSpan {
  int first_token = 0;
  int count = 0;
  int first_position = 0;
  // Block ids covering positions 0 .. first_position + count - 1. Those wholly outside the window are not read.
  const int32_t* blocks = nullptr;
};

// Which rows attend: those of a step's tokens, those of them that attend to images, or rows of images.
enum class SpanUse : uint8_t { kTokens, kCrossQuery, kCrossKvWrite };
inline constexpr int kSpanUses = 3;

// Rows of one use with the blocks of one table: layers whose memory is in different pages have different tables.
struct SpanSet {
  SpanUse use = SpanUse::kTokens;
  int table = 0;
};

struct AttentionParams {
  CacheLayout layout;
  std::byte* pool = nullptr;
  int layer = 0;
  int num_heads = 0;  // query heads, a multiple of layout.num_kv_heads
  SpanSet set;
  const AttentionSpan* spans = nullptr;  // of the set
  int span_count = 0;

  // Score of query i and key j: q.k, then softcap tanh(score / softcap), then minus slope |i - j|, plus a bias of j -
  // i.
  float softcap = 0;                    // 0: none
  const float* alibi_slopes = nullptr;  // [num_heads] or null (Press et al., 2022)
  // [num_heads, 2 bias_reach + 1] or null: of j - i from -bias_reach to bias_reach, the first and last beyond.
  const float* distance_biases = nullptr;
  int bias_reach = 0;
  int window = 0;  // only keys with i - j < window are seen; 0: all
  // [rows] or null: keys before this position are seen, ascending in a span and after i, where not only those up to i
  // are. All of them are in the cache.
  const int32_t* kv_lens = nullptr;
  // [num_heads] or null: a logit that takes part in the softmax and has no value.
  const float* sinks = nullptr;
};

// rope of the rows of all spans, with `factors` for queries, which may be {}; then k and v are written to the cache.
//   k [rows, num_kv_heads, key_dim], v [rows, num_kv_heads, value_dim], float32
void rope_and_write(ThreadPool& pool, const RopeTable& table, const AttentionParams& params, const HeadsView& q,
                    const float* factors, const HeadsView& k, const HeadsView& v);

// Attends with the rows' queries to what the cache holds up to each row's own position, or as far as it sees.
//   q [rows, num_heads, key_dim] float32, rotated and multiplied by the factor of q.k already
//   out [rows, num_heads, value_dim] float32
//   workspace: at least attention_workspace_floats(...) floats
void paged_attention(ThreadPool& pool, const AttentionParams& params, const HeadsView& q, float* workspace, float* out);

size_t attention_workspace_floats(const AttentionParams& params);

}  // namespace turbomind
