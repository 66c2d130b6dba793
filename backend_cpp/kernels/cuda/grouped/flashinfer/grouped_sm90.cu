// Grouped products of bfloat16 on Hopper by CUTLASS (BSD-3-Clause; its headers are in FlashInfer's wheel): wgmma and
// TMA.
#include "kernels/cuda/grouped/flashinfer/cutlass_groups.cuh"

namespace turbomind::cuda {

namespace {

using Element = cutlass::bfloat16_t;
using Tile = cute::Shape<cute::_128, cute::_128, cute::_64>;
using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;

constexpr int kElementAlignment = 8;  // elements in 16 bytes

using Epilogue = GroupEpilogue<Tile, Cluster, cutlass::epilogue::PtrArrayTmaWarpSpecializedPingpong>;
using Mainloop = cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, cutlass::layout::RowMajor*, kElementAlignment,
    Element, cutlass::layout::ColumnMajor*, kElementAlignment, float, Tile, Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(Epilogue::SharedStorage))>,
    cutlass::gemm::KernelPtrArrayTmaWarpSpecializedPingpong>::CollectiveOp;
using FullGemm = GroupGemm<Mainloop, Epilogue>;

void run(cudaStream_t stream, const GroupedCall& call) {
  const GroupedTable& table = call.table;
  using Kernel = FullGemm::GemmKernel;
  multiply_groups<FullGemm>(
      stream, call,
      {reinterpret_cast<const Element**>(table.x), reinterpret_cast<Kernel::InternalStrideA*>(table.x_strides),
       reinterpret_cast<const Element**>(table.w), reinterpret_cast<Kernel::InternalStrideB*>(table.x_strides)});
}

const bool is_added = add_library_kernel(GroupedKernel{1, "CUTLASS", GroupedType::kBFloat16, runs_on_hopper, run});

}  // namespace

}  // namespace turbomind::cuda
