#include "kernels/head_linear.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/isa.h"

namespace turbomind {

void HeadLinear::run(ThreadPool& pool) const {
  const auto in = static_cast<size_t>(x.head_dim);
  const auto out = static_cast<size_t>(y.head_dim);
  const size_t matrix_bytes = in * out * (weight.format == WeightFormat::kFloat32 ? 4 : 2);
  const int row_blocks = (x.rows + kLinearRowBlock - 1) / kLinearRowBlock;
  pool.parallel_for(row_blocks * x.heads, [&](int task) {
    const int head = task % x.heads;
    const int first = task / x.heads * kLinearRowBlock;
    const int count = std::min(kLinearRowBlock, x.rows - first);
    LinearWeight head_weight = weight;
    head_weight.data = static_cast<const std::byte*>(weight.data) + head * matrix_bytes;
    head_weight.out_features = y.head_dim;
    // The block kernel wants rows without gaps; copying them costs little alongside the product.
    std::vector<float> inputs(count * in);
    std::vector<float> outputs(count * out);
    for (int r = 0; r < count; ++r) std::copy_n(x.head(first + r, head), in, inputs.data() + r * in);
    multiply(kernels(), head_weight, inputs.data(), count, outputs.data());
    for (int r = 0; r < count; ++r) std::copy_n(outputs.data() + r * out, out, y.head(first + r, head));
  });
}

}  // namespace turbomind
