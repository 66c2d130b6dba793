// Attention with latents (DeepSeek-V2, arXiv 2405.04434) by a library: what is asked of its kernel, and which there
// are.
//
// Heads of 64 + 512: a key is [rotated, latent] as model/attention/latent_attention.h caches it, and its value is its
// own latent, so the values that the cache holds besides are not read.
#pragma once

#include "kernels/cuda/device.h"

namespace turbomind::cuda {

inline constexpr int kLatentRope = 64;
inline constexpr int kLatentRank = 512;
inline constexpr int kLatentKey = kLatentRope + kLatentRank;
// Packed rows (row major, head minor) of a tile of one multiprocessor.
inline constexpr int kLatentTile = 64;

// Which multiprocessor computes which tile of queries over which keys, and which merges what. A tile is of
// width * kLatentTile packed rows: neighbouring multiprocessors (a team) take its parts. Item w of team t is
// items [first_item[t], first_item[t + 1]).
struct LatentPlanView {
  int width = 1;  // multiprocessors of a team: 1 or 2
  int teams = 0;
  const int32_t* first_item = nullptr;  // [teams + 1]

  // Of each item:
  const int32_t* first_row = nullptr;     // of the sequence, in queries and out
  const int32_t* first_block = nullptr;   // of the sequence, in LatentCall::blocks
  const int32_t* rows = nullptr;          // of the sequence
  const int32_t* keys = nullptr;          // of the sequence: the last row sees them all, the one before one less
  const int32_t* first_packed = nullptr;  // packed row of the sequence that the tile begins with
  const int32_t* first_key = nullptr;     // keys [first_key, last_key) are the item's
  const int32_t* last_key = nullptr;
  const int32_t* partial = nullptr;  // row of the partial results that the tile begins with; -1: it is whole

  // Of each multiprocessor, [teams width]: it merges packed rows [first, last) of `out`, whose parts are rows
  // partial_first, partial_first + stride, ... below partial_last of the partial results, and so on row by row.
  const int32_t* merge_first = nullptr;
  const int32_t* merge_last = nullptr;
  const int32_t* merge_partial_first = nullptr;
  const int32_t* merge_partial_last = nullptr;
  const int32_t* merge_stride = nullptr;
};

struct LatentCall {
  const uint16_t* queries = nullptr;  // bfloat16 [rows, heads, kLatentKey], multiplied by the factor of q.k already
  uint16_t* out = nullptr;            // bfloat16 [rows, heads, kLatentRank]
  const uint16_t* keys = nullptr;     // bfloat16: the layer's [block_len, kLatentKey] of block 0
  size_t block_stride = 0;            // elements from block to block
  int block_len = 0;
  int heads = 0;                    // divides kLatentTile, or is kLatentTile width
  const int32_t* blocks = nullptr;  // on the device
  LatentPlanView plan;
  uint16_t* partial_out = nullptr;  // bfloat16 [partial rows, kLatentRank]
  float* partial_lse = nullptr;     // [partial rows]: log2 of the sum of the weights
};

struct LatentKernel {
  const char* name;
  // Of compute capability major.minor, 10 major + minor.
  bool (*runs_on)(int capability);
  void (*run)(cudaStream_t stream, const LatentCall& call);
};

// How a unit that was built with a library says so, before main() begins.
bool add_latent_kernel(const LatentKernel& kernel);
// The first of those added that runs on such a device; null when there is none.
const LatentKernel* latent_kernel_for(int capability);

}  // namespace turbomind::cuda
