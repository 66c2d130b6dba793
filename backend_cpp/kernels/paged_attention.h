// Causal attention over a paged key/value cache, and the cache write that precedes it.
//
// Cache layout. A block holds `block_len` consecutive tokens of one sequence for all layers. Inside a block, per layer
// and key/value head, keys are stored transposed and values plainly:
//   k [head_dim, block_len]   so that scores of neighbouring tokens are neighbouring lanes
//   v [block_len, head_dim]
// in the cache's type. Block b starts at pool + b * block_bytes; all k of a layer precede its v.
//
// int8 and int4 caches hold, for each head and token, x = scale (code - zero) with a half-precision scale and an 8-bit
// zero point that make the range of the head's values, and 0, representable; behind the codes of a head lie scale
// [block_len] and zero [block_len]. In int4 a byte holds two values of one token: dimensions 2 i and 2 i + 1 of a key,
// i and i + head_dim / 2 of a value. Codes are widened in registers; scales and zero points act on scores and weights,
// not on elements.
//
// Arithmetic. Scores, softmax and sums are float32. A row's keys are visited in partitions of kPartitionTokens, block
// by block, at absolute positions, and the partitions are merged in order; the result is bitwise independent of the
// batch, of prompt chunking, and of how partitions are spread over threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/types.h"

namespace turbomind {

inline constexpr int kPartitionTokens = 512;

enum class CacheType : uint8_t { kFloat32, kBFloat16, kInt8, kInt4 };

inline int bits_of(CacheType type) {
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

struct CacheLayout {
  CacheType type = CacheType::kFloat32;
  int num_layers = 0;
  int num_kv_heads = 0;
  int head_dim = 0;   // int4: a multiple of 32
  int block_len = 0;  // a multiple of 16 that divides kPartitionTokens

  bool is_rounded() const { return type == CacheType::kInt8 || type == CacheType::kInt4; }
  // Sizes and offsets in bytes.
  size_t code_bytes() const { return static_cast<size_t>(block_len) * head_dim * bits_of(type) / 8; }
  size_t head_bytes() const { return code_bytes() + (is_rounded() ? static_cast<size_t>(block_len) * 3 : 0); }
  size_t layer_bytes() const { return 2 * head_bytes() * num_kv_heads; }
  size_t block_bytes() const { return layer_bytes() * num_layers; }
  size_t key_offset(int layer, int head) const { return layer * layer_bytes() + head * head_bytes(); }
  size_t value_offset(int layer, int head) const { return key_offset(layer, num_kv_heads + head); }
};

// Rows of one sequence in this step: `count` rows from `first_row`, at positions first_position, first_position + 1,
// ...
struct AttentionSpan {
  int first_row = 0;
  int count = 0;
  int first_position = 0;
  const int32_t* blocks = nullptr;  // block ids covering positions 0 .. first_position + count - 1
};

struct AttentionParams {
  CacheLayout layout;
  std::byte* pool = nullptr;
  int layer = 0;
  int num_heads = 0;  // query heads, a multiple of layout.num_kv_heads
  const AttentionSpan* spans = nullptr;
  int span_count = 0;
};

// Writes k and v of each row to the cache.
//   qkv [rows, (num_heads + 2 num_kv_heads) head_dim] float32; keys are rotated already
void write_cache(ThreadPool& pool, const AttentionParams& params, const float* qkv);

// out [rows, num_heads head_dim] float32. q of qkv is rotated and multiplied by the factor of q.k already.
// workspace: at least attention_workspace_floats(...) floats.
void paged_attention(ThreadPool& pool, const AttentionParams& params, const float* qkv, float* workspace, float* out);

size_t attention_workspace_floats(const AttentionParams& params);

}  // namespace turbomind
