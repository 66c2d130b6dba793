#include "kernels/cuda/grouped/grouped_kernel.h"

#include "kernels/cuda/linear/reference_block.cuh"

namespace turbomind::cuda {

namespace {

using namespace reference;

// blockIdx.z is the group.
template <class T>
__global__ void __launch_bounds__(kThreads) reference_groups_kernel(GroupedCall groups, GemmCall call) {
  await_previous();
  const GroupedTable& table = groups.table;
  const int group = blockIdx.z;
  call.rows = table.rows[group];
  if (static_cast<int>(blockIdx.x) * kSide >= call.rows) return;
  call.x = table.x[group];
  call.w = table.w[group];
  call.y = table.y[group];
  call.y_stride = static_cast<size_t>(table.y_strides[group]);
  if constexpr (std::is_same_v<T, float8>) {
    call.x_scales = table.x_scales[group];
    call.w_scales = table.w_scales[group];
  }
  make_block<T, float, __nv_bfloat16>(call);
}

}  // namespace

void reference_groups(cudaStream_t stream, GroupedType type, const GroupedCall& call) {
  GemmCall product;
  product.outputs = call.outputs;
  product.inputs = call.inputs;
  product.scales = type == GroupedType::kFloat8 ? GemmScales::kBlocks : GemmScales::kNone;
  const dim3 grid(divide_up(call.rows, kSide), divide_up(call.outputs, kSide), call.groups);
  const auto kernel = type == GroupedType::kFloat8 ? reference_groups_kernel<float8> : reference_groups_kernel<bf16>;
  launch(kernel, grid, dim3(kThreads), 0, stream, call, product);
}

}  // namespace turbomind::cuda
