#include "kernels/cuda/grouped/grouped_gemm.h"

#include "kernels/cuda/grouped/groups.cuh"
#include "kernels/cuda/linear/gemms.h"
#include "kernels/cuda/linear/weight_slab.cuh"

namespace turbomind::cuda {

namespace {

constexpr int kThreads = 128;

// A thread rounds eight inputs of a row, for all its pairs; block x is the row, y its inputs.
template <class Rows>
__global__ void __launch_bounds__(kThreads) spread_rows_kernel(Rows rows, PairRows row_of_pair, uint16_t* rounded) {
  await_previous();
  const int row = blockIdx.x;
  const int inputs = rows.from.inputs;
  const int i = (blockIdx.y * kThreads + threadIdx.x) * kChunk;
  if (i >= inputs || row_of_pair(row, 0) < 0) return;
  float values[kChunk];
  rows.begin(row);
  rows.read(i, values);
  const uint4 chunk = round_chunk<WeightFormat::kBFloat16>(values);
  for (int k = 0; k < row_of_pair.of_each; ++k) {
    *reinterpret_cast<uint4*>(rounded + static_cast<size_t>(row_of_pair(row, k)) * inputs + i) = chunk;
  }
}

// A thread fills in a group: an expert that has rows, or, after these, none.
__global__ void __launch_bounds__(kThreads)
    fill_groups_kernel(GroupedGemm product, const uint16_t* rounded, GroupedTable table) {
  await_previous();
  const int group = blockIdx.x * kThreads + threadIdx.x;
  if (group >= product.experts) return;
  const bool is_there = group < *product.part_count;
  const int expert = is_there ? product.parts[group].expert : 0;
  const int first = is_there ? product.parts[group].first : 0;
  const int rows = is_there ? product.parts[group].count : 0;
  const int outputs = product.first.out_features;
  const int inputs = product.first.in_features;
  const auto* weight = reinterpret_cast<const LinearWeight*>(product.weights + expert * product.weight_stride);
  set_shape(table, group, rows, outputs, inputs);
  table.x[group] = rounded + static_cast<size_t>(first) * inputs;
  table.w[group] = weight->data;
  table.y[group] = static_cast<bf16*>(product.y) + static_cast<size_t>(first) * outputs;
}

}  // namespace

GroupedType grouped_type(const LinearWeight& weight) {
  if (weight.bias != nullptr || weight.input_order != nullptr) return GroupedType::kNone;
  if (weight.format == WeightFormat::kFloat8) {
    return library_scales(weight) != GemmScales::kNone ? GroupedType::kFloat8 : GroupedType::kNone;
  }
  const bool fits =
      weight.format == WeightFormat::kBFloat16 && weight.in_features % kChunk == 0 && weight.out_features % kChunk == 0;
  return fits ? GroupedType::kBFloat16 : GroupedType::kNone;
}

size_t grouped_scratch_bytes(const LinearWeight& weight, int experts, int pairs) {
  if (weight.format == WeightFormat::kFloat8) return float8_groups_bytes(weight, experts, pairs);
  return table_bytes(static_cast<size_t>(experts)) + scratch_bytes<std::byte>(kGroupedWorkspaceBytes) +
         scratch_bytes<uint16_t>(static_cast<size_t>(pairs) * weight.in_features);
}

void grouped_gemm(cudaStream_t stream, Scratch memory, const GroupedKernel& kernel, const GroupedGemm& product) {
  if (kernel.type == GroupedType::kFloat8) return float8_groups(stream, memory, kernel, product);
  GroupedCall call;
  call.groups = product.experts;
  call.rows = product.pairs;
  call.outputs = product.first.out_features;
  call.inputs = product.first.in_features;
  call.table = take_table(memory, static_cast<size_t>(product.experts));
  auto* rounded = memory.take<uint16_t>(static_cast<size_t>(product.pairs) * call.inputs);
  call.workspace = memory.take<std::byte>(kGroupedWorkspaceBytes);
  const RowsToRound from = rows_of(product.first, product.x, product.x_rows);
  with_inputs(product.x, from, [&]<class Rows>(const Rows& rows) {
    launch(spread_rows_kernel<Rows>, rows_and(product.x_rows, divide_up(call.inputs, kThreads * kChunk)),
           dim3(kThreads), 0, stream, rows, PairRows(product), rounded);
  });
  launch(fill_groups_kernel, dim3(divide_up(product.experts, kThreads)), dim3(kThreads), 0, stream, product, rounded,
         call.table);
  kernel.run(stream, call);
}

}  // namespace turbomind::cuda
