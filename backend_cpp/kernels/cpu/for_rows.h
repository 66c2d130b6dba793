// Loops over rows on a pool.
#pragma once

#include <algorithm>
#include <cstddef>

#include "base/thread_pool.h"

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

}  // namespace turbomind
