// Grouped products on Hopper by CUTLASS (BSD-3-Clause; its headers lie in FlashInfer's wheel): wgmma, TMA, one
// persistent launch whose blocks read shapes and pointers on the device.
#include "kernels/cuda/grouped/grouped_kernel.h"

#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cute/tensor.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/group_array_problem_shape.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

namespace turbomind::cuda {

namespace {

using Shape = cute::Shape<int, int, int>;
using Element = cutlass::bfloat16_t;
using Tile = cute::Shape<cute::_128, cute::_128, cute::_64>;
using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;

constexpr int kElementAlignment = 8;  // elements in 16 bytes
constexpr int kResultAlignment = 4;

using Epilogue = cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster, cutlass::epilogue::collective::EpilogueTileAuto,
    float, float, void, cutlass::layout::RowMajor*, kResultAlignment, float, cutlass::layout::RowMajor*,
    kResultAlignment, cutlass::epilogue::PtrArrayTmaWarpSpecializedPingpong>::CollectiveOp;
using Mainloop = cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, cutlass::layout::RowMajor*, kElementAlignment,
    Element, cutlass::layout::ColumnMajor*, kElementAlignment, float, Tile, Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(Epilogue::SharedStorage))>,
    cutlass::gemm::KernelPtrArrayTmaWarpSpecializedPingpong>::CollectiveOp;
using Kernel = cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<Shape>, Mainloop, Epilogue>;
using Product = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

// What the table holds for them.
static_assert(sizeof(Shape) == 3 * sizeof(int32_t));
static_assert(sizeof(Kernel::InternalStrideA) == sizeof(int64_t) && sizeof(Kernel::InternalStrideB) == sizeof(int64_t));
static_assert(sizeof(Kernel::InternalStrideD) == sizeof(int64_t));

void check_status(cutlass::Status status, const char* what) {
  if (status != cutlass::Status::kSuccess) {
    throw internal_error(std::string(what) + ": CUTLASS: " + cutlassGetStatusString(status));
  }
}

bool runs_on(int capability) {
  return capability == 90;
}

void run(cudaStream_t stream, const GroupedCall& call) {
  const GroupedTable& table = call.table;
  cutlass::KernelHardwareInfo device;
  check(cudaGetDevice(&device.device_id), "asking for the current device");
  device.sm_count = multiprocessor_count();
  Product::Arguments arguments{
      cutlass::gemm::GemmUniversalMode::kGrouped,
      {call.groups, reinterpret_cast<Shape*>(table.shapes), nullptr},
      {reinterpret_cast<const Element**>(table.x), reinterpret_cast<Kernel::InternalStrideA*>(table.x_strides),
       reinterpret_cast<const Element**>(table.w), reinterpret_cast<Kernel::InternalStrideB*>(table.x_strides)},
      {{}, nullptr, nullptr, table.y, reinterpret_cast<Kernel::InternalStrideD*>(table.y_strides)},
      device};
  arguments.epilogue.thread.alpha = 1.0f;
  arguments.epilogue.thread.beta = 0.0f;
  if (Product::get_workspace_size(arguments) > kGroupedWorkspaceBytes) {
    throw internal_error("CUTLASS wants " + std::to_string(Product::get_workspace_size(arguments)) +
                         " bytes for a product of groups");
  }
  Product product;
  check_status(Product::can_implement(arguments), "a product of groups");
  check_status(product.initialize(arguments, call.workspace, stream), "preparing a product of groups");
  check_status(product.run(stream), "a product of groups");
}

const bool is_added = add_grouped_kernel(1, {"CUTLASS", runs_on, run});

}  // namespace

}  // namespace turbomind::cuda
