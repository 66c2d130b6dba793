#include "kernels/cuda/ring/ring_kernel.cuh"

#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/linear_task.cuh"
#include "kernels/cuda/linear/weight_slab.cuh"

namespace turbomind::cuda {

namespace {

template <class Ring>
void launch_ring(cudaStream_t stream, Scratch scratch, LinearTask task) {
  const RingPlan plan =
      choose_ring<Ring>(task.weight, task.rows, multiprocessor_count(), static_cast<int>(max_shared_memory()));
  task.splits = plan.splits;
  if (plan.splits > 1) {
    task.partials = scratch.take<float>(static_cast<size_t>(plan.items) * plan.across * 128 * Ring::kSums);
  }
  launch(ring_linear_kernel<Ring>, dim3(std::min(plan.items, multiprocessor_count())), dim3(Ring::kThreads),
         plan.shared_bytes, stream, task, plan, range_of(Ring::kFormat));
}

template <WeightFormat kFormat>
void ring_format(cudaStream_t stream, Scratch scratch, const LinearTask& task, int columns) {
  switch (columns) {
    case 8:
      return launch_ring<Ring<kFormat, 8, 4, true>>(stream, scratch, task);
    case 16:
      return launch_ring<Ring<kFormat, 16, 4, true>>(stream, scratch, task);
    case 32:
      return launch_ring<Ring<kFormat, 32, 4, true>>(stream, scratch, task);
    case 64:
      return launch_ring<Ring<kFormat, 64, 4, !kHasZeros<kFormat>>>(stream, scratch, task);
    case 128:
      return launch_ring<Ring<kFormat, 128, kHasZeros<kFormat> ? 4 : 2, !kHasZeros<kFormat>>>(stream, scratch, task);
  }
  throw internal_error("ring_linear has no kernel for this number of columns");
}

// Whether this device runs the kernels below.
bool is_compiled() {
#ifdef TM_CUDA_EMULATED
  return true;
#else
  return compute_capability() == 90 &&
         kernels_wait(reinterpret_cast<const void*>(ring_linear_kernel<Ring<WeightFormat::kInt4, 8, 4, true>>));
#endif
}

}  // namespace

// Without constants of groups, codes of all sizes of groups lie alike.
bool has_ring(const LinearWeight& weight) {
  if (!weight.is_packed() || !is_compiled()) return false;
  const bool has_groups = weight.scales != nullptr || weight.zeros != nullptr || weight.block_scales != nullptr;
  return has_groups ? weight.group == kRingUnit : packed_shape(weight).padded_features() % kRingUnit == 0;
}

int ring_columns(const LinearWeight& weight, int rows) {
  for (const int columns : {8, 16, 32, 64}) {
    if (rows <= columns) return columns;
  }
  return rows > 128 && weight.format == WeightFormat::kFloat8 ? 64 : 128;
}

void ring_linear(cudaStream_t stream, Scratch scratch, const LinearTask& task, int columns) {
  switch (task.weight.format) {
    case WeightFormat::kInt8:
      return ring_format<WeightFormat::kInt8>(stream, scratch, task, columns);
    case WeightFormat::kInt4:
      return ring_format<WeightFormat::kInt4>(stream, scratch, task, columns);
    case WeightFormat::kFloat8:
      return ring_format<WeightFormat::kFloat8>(stream, scratch, task, columns);
    default:
      throw internal_error("ring_linear has kernels for weights of 8 and 4 bits");
  }
}

}  // namespace turbomind::cuda
