// Attention with latents (DeepSeek-V2, arXiv 2405.04434) by a library: the kernel's interface.
//
// Heads of 64 + 512: a key is [rotated, latent] as model/attention/latent_attention.h caches it, and its value is its
// own latent, so the values that the cache holds besides are not read.
#pragma once

#include <vector>

#include "kernels/cuda/attention/paged_attention.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/library_kernels.h"

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
  const int32_t* first_token = nullptr;   // of the sequence, in queries and out
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

// Spreads the latent attention of a step over the device's multiprocessors, for one launch or several.
//
//   packed rows of a sequence (row major, head minor), cut into tiles; the keys a tile sees, cut into items
//
//     keys ->      0 ............................... last
//     tile 0       [ item ][ item ][ item ]               merged, since there are several
//     tile 1       [ item ][ item ][ item ][ item ]
//     tile 2 (of another sequence)  [ item ]              whole
//
// Items have at most this many keys that every team gets about as many; an item goes to the team that has least to do.
// Everything here is the host's work; the shape of the memory depends on a step's shape alone, so that a captured graph
// stays right.

// Packed rows of one launch: bounds the memory for its queries and results.
inline constexpr int kMaxLatentRows = 1 << 17;

// One launch: rows [first_token, first_token + rows) of the step.
struct LatentPiece {
  std::vector<DeviceSpan> spans;  // by first_token, none empty; all rows that come to something
  int first_token = 0;
  int rows = 0;  // with those that pad a step that only decodes
  int heads = 0;
  int width = 1;
  int teams = 0;
  int max_items = 0;

  int tile() const { return width * kLatentTile; }
  int multiprocessors() const { return teams * width; }
  // Of the partial results that the launch may write.
  size_t partial_rows() const { return static_cast<size_t>(2 * teams) * tile(); }
  // int32 of the plan.
  size_t plan_size() const;
};

// Whether the kernel's tiles fit this many query heads: it takes a tile's last row to be at (first + tile) / heads.
constexpr bool has_latent_tiles(int heads) {
  return heads == 2 * kLatentTile || (heads > 0 && kLatentTile % heads == 0);
}

// Cuts a step. `spans`: whose rows follow each other without a gap, in any order; `padded_spans`, of a step that only
// decodes: how many spans its shape is for, at least those; else their number. Empty where rows have gaps.
std::vector<LatentPiece> cut_latents(std::vector<DeviceSpan> spans, int padded_spans, int heads, int multiprocessors);

// Writes a piece's plan to `memory`, plan_size() int32.
void fill_latent_plan(const LatentPiece& piece, int32_t* memory);
// That plan where it is on the device. first_token counts from the piece's.
LatentPlanView view_latent_plan(const LatentPiece& piece, const int32_t* memory);
// How many rows of the piece come to something, in the same memory.
const int32_t* filled_rows(const int32_t* memory);

// Latent attention of a step by a library's kernel: queries rounded to bfloat16, the launches of the plan, and results
// widened.
//
// Arithmetic. Queries, softmax weights, parts of a split context and results are rounded to bfloat16 (relative error
// 2^-8 each); scores, softmax and sums are float32. Values are the keys' latents.

// Whether a library's kernel computes such attention: a bfloat16 cache of one latent head, and no window, cap, slope,
// sink or sight.
bool is_latent_attention(const AttentionParams& params);

size_t latent_scratch_bytes(const std::vector<LatentPiece>& pieces);

// `plan`, on the device: of the pieces, one after the other. q and out as paged_attention has them; rows of no span
// are not written.
void latent_attention(cudaStream_t stream, Scratch memory, const LatentKernel& kernel,
                      const std::vector<LatentPiece>& pieces, const int32_t* plan, const AttentionParams& params,
                      const int32_t* blocks, const HeadsView& q, float* out);

}  // namespace turbomind::cuda
