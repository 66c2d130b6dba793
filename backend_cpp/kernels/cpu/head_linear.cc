#include "kernels/head_linear.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/isa.h"

namespace turbomind {

void head_linear(ThreadPool& pool, const LinearWeight& weight, int heads, const HeadRows<const float>& x, int rows,
                 const HeadRows<float>& y) {
  const int out_features = weight.out_features / heads;
  const auto in_features = static_cast<size_t>(weight.in_features);
  const size_t element = weight.format == WeightFormat::kFloat32 ? 4 : 2;
  const int row_blocks = (rows + kLinearRowBlock - 1) / kLinearRowBlock;
  pool.parallel_for(row_blocks * heads, [&](int task) {
    const int head = task % heads;
    const int first = task / heads * kLinearRowBlock;
    const int count = std::min(kLinearRowBlock, rows - first);
    LinearWeight own = weight;
    own.data = static_cast<const std::byte*>(weight.data) + head * out_features * in_features * element;
    own.out_features = out_features;
    // The block kernel wants rows without gaps; copying them costs 1 / out_features of the product.
    std::vector<float> inputs(count * in_features);
    std::vector<float> outputs(static_cast<size_t>(count) * out_features);
    for (int r = 0; r < count; ++r) std::copy_n(x.at(first + r, head), in_features, inputs.data() + r * in_features);
    kernels().linear_block(own, inputs.data(), count, 0, out_features, outputs.data(), false);
    for (int r = 0; r < count; ++r) {
      std::copy_n(outputs.data() + static_cast<size_t>(r) * out_features, out_features, y.at(first + r, head));
    }
  });
}

}  // namespace turbomind
