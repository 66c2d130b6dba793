// Common parts of grouped products by CUTLASS on Hopper: one persistent launch whose blocks read shapes and pointers on
// the device, sums float32, results in bfloat16 written by TMA.
#pragma once

#include "kernels/cuda/grouped/grouped_kernel.h"

#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cute/tensor.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/group_array_problem_shape.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

namespace turbomind::cuda {

using GroupShape = cute::Shape<int, int, int>;

template <class Tile, class Cluster, class Schedule>
using GroupEpilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster, cutlass::epilogue::collective::EpilogueTileAuto,
    float, float, void, cutlass::layout::RowMajor*, 8, cutlass::bfloat16_t, cutlass::layout::RowMajor*, 8,
    Schedule>::CollectiveOp;

template <class Mainloop, class Epilogue>
using GroupGemm = cutlass::gemm::device::GemmUniversalAdapter<
    cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<GroupShape>, Mainloop, Epilogue>>;

inline void check_status(cutlass::Status status, const char* what) {
  if (status != cutlass::Status::kSuccess) {
    throw internal_error(std::string(what) + ": CUTLASS: " + cutlassGetStatusString(status));
  }
}

inline bool runs_on_hopper(int capability) {
  return capability == 90;
}

// `operands`: of the main loop.
template <class FullGemm>
void multiply_groups(cudaStream_t stream, const GroupedCall& call,
                     const typename FullGemm::GemmKernel::MainloopArguments& operands) {
  using Kernel = typename FullGemm::GemmKernel;
  // Entries of the table.
  static_assert(sizeof(GroupShape) == 3 * sizeof(int32_t));
  static_assert(sizeof(typename Kernel::InternalStrideA) == sizeof(int64_t) &&
                sizeof(typename Kernel::InternalStrideB) == sizeof(int64_t));
  static_assert(sizeof(typename Kernel::InternalStrideD) == sizeof(int64_t));
  const GroupedTable& table = call.table;
  cutlass::KernelHardwareInfo device;
  check(cudaGetDevice(&device.device_id), "asking for the current device");
  device.sm_count = multiprocessor_count();
  auto* y_strides = reinterpret_cast<typename Kernel::InternalStrideD*>(table.y_strides);
  typename FullGemm::Arguments arguments{
      cutlass::gemm::GemmUniversalMode::kGrouped,
      {call.groups, reinterpret_cast<GroupShape*>(table.shapes), nullptr},
      operands,
      {{}, nullptr, nullptr, reinterpret_cast<cutlass::bfloat16_t**>(table.y), y_strides},
      device};
  arguments.epilogue.thread.alpha = 1.0f;
  arguments.epilogue.thread.beta = 0.0f;
  if (FullGemm::get_workspace_size(arguments) > kGroupedWorkspaceBytes) {
    throw internal_error("CUTLASS wants " + std::to_string(FullGemm::get_workspace_size(arguments)) +
                         " bytes for a product of groups");
  }
  FullGemm product;
  check_status(FullGemm::can_implement(arguments), "a product of groups");
  check_status(product.initialize(arguments, call.workspace, stream), "preparing a product of groups");
  check_status(product.run(stream), "a product of groups");
}

}  // namespace turbomind::cuda
