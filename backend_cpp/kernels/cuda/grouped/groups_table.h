// Where the table of groups is in scratch memory.
#pragma once

#include "kernels/cuda/grouped/grouped_kernel.h"
#include "kernels/cuda/scratch.h"

namespace turbomind::cuda {

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

}  // namespace turbomind::cuda
