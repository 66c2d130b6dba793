#include "kernels/linear.h"

#include <algorithm>

#include "kernels/cpu/isa.h"

namespace turbomind {

namespace {

// Weight bytes one chunk streams: large enough to hide the cost of a claim, small enough to balance two cores.
constexpr size_t kChunkBytes = 128 << 10;

}  // namespace

void linear(ThreadPool& pool, const LinearWeight& weight, const float* x, int rows, float* y, bool accumulate) {
  const KernelTable& table = kernels();
  const size_t row_bytes = static_cast<size_t>(weight.in_features) * byte_size(weight.dtype);
  const int columns = std::max<int>(4, static_cast<int>(kChunkBytes / std::max<size_t>(row_bytes, 1)) / 4 * 4);
  const int column_chunks = (weight.out_features + columns - 1) / columns;
  // Column chunks vary fastest, so that all threads work on the same rows of x.
  const int row_chunks = (rows + kLinearRowBlock - 1) / kLinearRowBlock;
  pool.parallel_for(row_chunks * column_chunks, [&](int chunk) {
    const int row = chunk / column_chunks * kLinearRowBlock;
    const int first = chunk % column_chunks * columns;
    const int last = std::min(first + columns, weight.out_features);
    table.linear_block(weight, x + static_cast<size_t>(row) * weight.in_features, std::min(kLinearRowBlock, rows - row),
                       first, last, y + static_cast<size_t>(row) * weight.out_features, accumulate);
  });
}

}  // namespace turbomind
