// Grouped products of float8 on Hopper by CUTLASS (BSD-3-Clause; its headers are in FlashInfer's wheel), with scales
// for each row of both sides and 128 inputs: sums of 128 inputs are made by wgmma, multiplied with the two scales, and
// added in float32.
#include "kernels/cuda/grouped/flashinfer/cutlass_groups.cuh"

#include <cutlass/detail/blockwise_scale_layout.hpp>

namespace turbomind::cuda {

namespace {

using Element = cutlass::float_e4m3_t;
using Tile = cute::Shape<cute::_128, cute::_128, cute::_128>;
using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;
using Scales = cutlass::detail::Sm90BlockwiseScaleConfig<1, 1, kGroupBlock>;
using ScalesOfX = decltype(Scales::deduce_layoutSFA());
using ScalesOfWeight = decltype(Scales::deduce_layoutSFB());

constexpr int kElementAlignment = 16;  // elements in 16 bytes

using Epilogue = GroupEpilogue<Tile, Cluster, cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative>;
using Mainloop = cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, cute::tuple<cutlass::layout::RowMajor*, ScalesOfX*>,
    kElementAlignment, Element, cute::tuple<cutlass::layout::ColumnMajor*, ScalesOfWeight*>, kElementAlignment, float,
    Tile, Cluster, cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(Epilogue::SharedStorage))>,
    cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperativeFP8Blockwise>::CollectiveOp;
using FullGemm = GroupGemm<Mainloop, Epilogue>;

void run(cudaStream_t stream, const GroupedCall& call) {
  const GroupedTable& table = call.table;
  using Kernel = FullGemm::GemmKernel;
  // Where scales are follows from a group's shape; layouts are not read.
  multiply_groups<FullGemm>(
      stream, call,
      {reinterpret_cast<const Element**>(table.x), reinterpret_cast<Kernel::InternalStrideA*>(table.x_strides),
       reinterpret_cast<const Element**>(table.w), reinterpret_cast<Kernel::InternalStrideB*>(table.x_strides),
       table.x_scales, nullptr, table.w_scales, nullptr});
}

const bool is_added = add_library_kernel(GroupedKernel{1, "CUTLASS", GroupedType::kFloat8, runs_on_hopper, run});

}  // namespace

}  // namespace turbomind::cuda
