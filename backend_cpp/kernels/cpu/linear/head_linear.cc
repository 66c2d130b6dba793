#include "kernels/head_linear.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/packed_weight.h"

namespace turbomind {

namespace {

// As linear does for so few rows, on one thread.
void multiply(const LinearWeight& weight, const float* x, int rows, float* y) {
  const KernelTable& table = kernels();
  const RowsPlan plan = table.rows_plan(weight, rows);
  if (plan.kind == RowsPlan::Kind::kAsTheyAre) {
    table.linear_block(weight, x, rows, 0, weight.out_features, y, false);
    return;
  }
  LinearScratch scratch;
  const WideRows wide = scratch.reserve_wide(plan.layout, rows);
  const auto stride = static_cast<size_t>(weight.in_features);
  for (int row = 0; row < rows; ++row) table.widen_row(x + row * stride, weight.in_features, row, wide);
  const int tiles = (weight.out_features + kTileOutputs - 1) / kTileOutputs;
  table.wide_block(weight, wide, 0, rows, 0, tiles, y, false);
}

}  // namespace

void HeadLinear::run(ThreadPool& pool) const {
  const auto in = static_cast<size_t>(x.head_dim);
  const auto out = static_cast<size_t>(y.head_dim);
  const size_t matrix_bytes = in * out * (weight.format == WeightFormat::kFloat32 ? 4 : 2);
  const int row_blocks = (x.rows + kLinearRowBlock - 1) / kLinearRowBlock;
  pool.parallel_for(row_blocks * x.heads, [&](int task) {
    const int head = task % x.heads;
    const int first = task / x.heads * kLinearRowBlock;
    const int count = std::min(kLinearRowBlock, x.rows - first);
    LinearWeight own = weight;
    own.data = static_cast<const std::byte*>(weight.data) + head * matrix_bytes;
    own.out_features = y.head_dim;
    // The block kernel wants rows without gaps; copying them costs little alongside the product.
    std::vector<float> inputs(count * in);
    std::vector<float> outputs(count * out);
    for (int r = 0; r < count; ++r) std::copy_n(x.head(first + r, head), in, inputs.data() + r * in);
    multiply(own, inputs.data(), count, outputs.data());
    for (int r = 0; r < count; ++r) std::copy_n(outputs.data() + r * out, out, y.head(first + r, head));
  });
}

}  // namespace turbomind
