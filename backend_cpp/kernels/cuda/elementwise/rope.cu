#include "kernels/cuda/elementwise/elementwise.h"

#include "kernels/cuda/elementwise/rotate.cuh"

namespace turbomind::cuda {

namespace {

constexpr int kThreads = 256;

// A thread has one pair of one row.
__global__ void __launch_bounds__(kThreads) table_kernel(RopeAngles angles, size_t count, float* cosine, float* sine) {
  await_previous();
  const size_t index = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= count) return;
  const size_t row = index / angles.pairs;
  const size_t set = angles.sets != nullptr ? angles.sets[row] : 0;
  const size_t pair = index % angles.pairs;
  const int axis = angles.axis_of_pair != nullptr ? angles.axis_of_pair[pair] : 0;
  const float angle =
      static_cast<float>(angles.positions[row * angles.axes + axis]) * angles.frequencies[set * angles.pairs + pair];
  cosine[index] = cosf(angle) * angles.scale;
  sine[index] = sinf(angle) * angles.scale;
}

// A thread takes one of the `units` of one head.
__global__ void __launch_bounds__(kThreads)
    rope_kernel(RopeTable table, HeadsView heads, const float* factors, int units, size_t count) {
  await_previous();
  const size_t index = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= count) return;
  const size_t row = index / units / heads.heads;
  float* head = heads.head(row, static_cast<int>(index / units % heads.heads));
  rotate_unit(table, row, static_cast<int>(index % units), factors, head);
}

}  // namespace

void rope_table(cudaStream_t stream, const RopeAngles& angles, int rows, float* cosine, float* sine) {
  const size_t count = static_cast<size_t>(rows) * angles.pairs;
  if (count == 0) return;
  launch(table_kernel, dim3(static_cast<unsigned>(divide_up(count, kThreads))), dim3(kThreads), 0, stream, angles,
         count, cosine, sine);
}

void rope(cudaStream_t stream, const RopeTable& table, const HeadsView& heads, const float* factors) {
  const int units = rotated_units(table, heads.head_dim, factors);
  const size_t count = static_cast<size_t>(heads.rows) * heads.heads * units;
  if (count == 0) return;
  launch(rope_kernel, dim3(static_cast<unsigned>(divide_up(count, kThreads))), dim3(kThreads), 0, stream, table, heads,
         factors, units, count);
}

}  // namespace turbomind::cuda
