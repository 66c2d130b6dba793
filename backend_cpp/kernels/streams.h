// Several residual streams of a model (AltUp; Baykal et al., 2023, arXiv 2301.13310), and the cut of a row at a share
// of its own spread. Sums go from the first element on; a row's result depends on that row alone.
#pragma once

#include <cstddef>

#include "base/thread_pool.h"
#include "kernels/operation.h"

namespace turbomind {

// Streams x [count, rows, size].
struct StreamShape {
  int count = 0;
  int rows = 0;
  int size = 0;
};

// y[i] = x[i] + sum over k of factors[row, i, k] x[k]; factors [rows, count, count]; y as x, and another.
void mix_streams(ThreadPool& pool, const StreamShape& shape, const float* factors, const float* x, float* y);
inline constexpr Operation kMixStreams("mix_streams", mix_streams);

// x[i] += (1 + factors[row, i]) (made - x[active] as it was); factors [rows, count], made [rows, size].
void correct_streams(ThreadPool& pool, const StreamShape& shape, int active, const float* factors, const float* made,
                     float* x);
inline constexpr Operation kCorrectStreams("correct_streams", correct_streams);

// x *= rms(like) / max(rms(x), sqrt(1e-5)), row by row; x and like [rows, size].
void match_rms(ThreadPool& pool, const float* like, int rows, int size, float* x);
inline constexpr Operation kMatchRms("match_rms", match_rms);

// x = max(x - mean - factor deviation, 0), with mean and standard deviation (of a whole population) of the row. x:
// `rows` rows of `size`, `stride` floats apart.
void cut_rows(ThreadPool& pool, float factor, int rows, int size, size_t stride, float* x);
inline constexpr Operation kCutRows("cut_rows", cut_rows);

}  // namespace turbomind
