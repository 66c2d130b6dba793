// Rotary position embedding (Su et al., 2021), in place.
//
// Of each head the pairs i (dimensions i and i + pairs, or, interleaved, 2 i and 2 i + 1) are rotated by the row's
// angle number i; dimensions from 2 pairs on stay. Then the whole head is multiplied by the row's factor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/heads_view.h"

namespace turbomind {

struct RopeTable {
  const float* cosine = nullptr;  // [rows, pairs]
  const float* sine = nullptr;    // [rows, pairs]
  int pairs = 0;                  // 0: nothing is rotated
  bool is_interleaved = false;
};

// By which angles the rows are rotated: position times frequency, in float32.
struct RopeAngles {
  const int32_t* positions = nullptr;  // [rows, axes]
  const int32_t* sets = nullptr;       // [rows]; which set of frequencies; null: the first
  const float* frequencies = nullptr;  // [sets, pairs]
  int pairs = 0;
  float scale = 1;                        // multiplies cosines and sines
  int axes = 1;                           // numbers that a position has
  const int32_t* axis_of_pair = nullptr;  // [pairs]; which of them turns a pair; null: the first
};

// cosine, sine [rows, pairs]
void rope_table(ThreadPool& pool, const RopeAngles& angles, int rows, float* cosine, float* sine);

// factors [rows], or null: 1
void rope_row(const RopeTable& table, size_t row, const HeadsView& heads, const float* factors);
void rope(ThreadPool& pool, const RopeTable& table, const HeadsView& heads, const float* factors);

}  // namespace turbomind
