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
#pragma once

#include <vector>

#include "kernels/cuda/attention/paged_attention.h"
#include "kernels/cuda/latent/latent_kernel.h"

namespace turbomind::cuda {

// Packed rows of one launch: bounds the memory for its queries and results.
inline constexpr int kMaxLatentRows = 1 << 17;

// One launch: rows [first_row, first_row + rows) of the step.
struct LatentPiece {
  std::vector<DeviceSpan> spans;  // by first_row, none empty; all rows that come to something
  int first_row = 0;
  int rows = 0;  // with those that pad a step that only decodes
  int heads = 0;
  int width = 1;
  int teams = 0;
  int most_items = 0;

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
// That plan where it is on the device. first_row counts from the piece's.
LatentPlanView view_latent_plan(const LatentPiece& piece, const int32_t* memory);
// How many rows of the piece come to something, in the same memory.
const int32_t* filled_rows(const int32_t* memory);

}  // namespace turbomind::cuda
