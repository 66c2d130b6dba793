// Device code of grouped GEMMs: the table of groups.
#pragma once

#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/grouped/grouped_gemm.h"
#include "kernels/cuda/grouped/grouped_kernel.h"
#include "kernels/cuda/quantize/made_rows.cuh"

namespace turbomind::cuda {

// Where the table of groups is in scratch memory.
inline size_t table_bytes(size_t groups) {
  return scratch_bytes<int32_t>(3 * groups) + 3 * scratch_bytes<int32_t>(groups) + 2 * scratch_bytes<int64_t>(groups) +
         5 * scratch_bytes<void*>(groups);
}

inline GroupedTable take_table(Scratch& memory, size_t groups) {
  return {memory.take<int32_t>(3 * groups),  memory.take<int32_t>(groups),     memory.take<int32_t>(groups),
          memory.take<int32_t>(groups),      memory.take<int64_t>(groups),     memory.take<int64_t>(groups),
          memory.take<const void*>(groups),  memory.take<const void*>(groups), memory.take<void*>(groups),
          memory.take<const float*>(groups), memory.take<const float*>(groups)};
}

// The table of groups from `first` on.
inline GroupedTable from_group(const GroupedTable& table, int first) {
  return {table.shapes + 3 * first, table.rows + first,      table.outputs + first, table.inputs + first,
          table.x_strides + first,  table.y_strides + first, table.x + first,       table.w + first,
          table.y + first,          table.x_scales + first,  table.w_scales + first};
}

__host__ __device__ inline void set_shape(const GroupedTable& table, int group, int rows, int outputs, int inputs) {
  table.shapes[3 * group] = rows;
  table.shapes[3 * group + 1] = outputs;
  table.shapes[3 * group + 2] = inputs;
  table.rows[group] = rows;
  table.outputs[group] = outputs;
  table.inputs[group] = inputs;
  table.x_strides[group] = inputs;
  table.y_strides[group] = outputs;
}

// How the inputs of pairs (moe/sort_experts.h) are read: a row of x once, for all pairs that it goes to.
struct PairRows {
  explicit PairRows(const GroupedGemm& product)
      : slots(product.slots), of_each(product.pairs / product.x_rows), expert_of_pair(product.expert_of_pair) {}

  // The pair number k of a row, or -1.
  __device__ __forceinline__ int operator()(int row, int k) const {
    if (slots != nullptr) return slots[row * of_each + k];
    return expert_of_pair[row] >= 0 ? row : -1;
  }

  const int32_t* slots;
  int of_each;
  const int32_t* expert_of_pair;
};

// grouped_gemm for weights of float8. Weights are in tiles (kernels/packed_weight.h): those of some experts at a
// time are laid out row by row, with a scale for each output and 128 inputs, and multiplied.
size_t float8_groups_bytes(const LinearWeight& weight, int experts, int pairs);

void float8_groups(cudaStream_t stream, Scratch memory, const GroupedKernel& kernel, const GroupedGemm& product);

}  // namespace turbomind::cuda
