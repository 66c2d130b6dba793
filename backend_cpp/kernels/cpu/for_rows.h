// Loops over rows on a pool, and runs of the rows of sequences.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/paged_attention.h"

namespace turbomind {

inline constexpr int kChunkElements = 16384;

// Calls body(row); rows are grouped so that one chunk is worth a thread's while.
template <class RowBody>
void for_rows(ThreadPool& pool, int rows, int row_elements, RowBody&& body) {
  const int group = std::max(1, kChunkElements / std::max(row_elements, 1));
  pool.parallel_for((rows + group - 1) / group, [&](int chunk) {
    const int last = std::min(rows, (chunk + 1) * group);
    for (int row = chunk * group; row < last; ++row) body(static_cast<size_t>(row));
  });
}

// Neighbouring rows of one sequence.
struct Run {
  const AttentionSpan* span;
  int first_token;  // within the span
  int row_count;

  int position(int row) const { return span->first_position + first_token + row; }
};

// Runs begin at positions that are multiples of `rows` (or with the span), so what they are does not depend on chunks,
// and two tokens that share bytes of the cache belong to one run.
inline std::vector<Run> runs_of(const AttentionParams& params, int rows) {
  std::vector<Run> runs;
  for (int s = 0; s < params.span_count; ++s) {
    const AttentionSpan& span = params.spans[s];
    for (int row = 0; row < span.count;) {
      const int count = std::min(rows - (span.first_position + row) % rows, span.count - row);
      runs.push_back({&span, row, count});
      row += count;
    }
  }
  return runs;
}

}  // namespace turbomind
