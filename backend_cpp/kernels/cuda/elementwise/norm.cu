#include "kernels/cuda/elementwise/elementwise.h"

#include "kernels/cuda/elementwise/row_norm.cuh"

namespace turbomind::cuda {

namespace {

struct Rows {
  const float* x;
  float* y;
  size_t row_stride;
  size_t head_stride;
  int heads;
  int count;  // rows * heads
  int size;
};

template <int kThreads, class Vector>
__global__ void __launch_bounds__(RowGroup<kThreads>::kBlock) norm_kernel(NormWeight norm, Rows rows) {
  await_previous();
  constexpr int kWidth = sizeof(Vector) / sizeof(float);
  const int index = RowGroup<kThreads>::row();
  if (index >= rows.count) return;  // whole warps, and no barrier where warps have rows
  const size_t offset = index / rows.heads * rows.row_stride + index % rows.heads * rows.head_stride;
  const float* x = rows.x + offset;
  float* y = rows.y + offset;
  const RowNorm own = norm_of_row<kThreads, Vector>(norm, x, rows.size);
  for_each<kThreads, Vector>(x, rows.size, [&](int i, const float* v) {
    const Vector scale = *reinterpret_cast<const Vector*>(norm.weight + i);
    const auto* scales = reinterpret_cast<const float*>(&scale);
    Vector out;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      reinterpret_cast<float*>(&out)[j] = own(v[j], scales[j], norm.bias != nullptr ? norm.bias + i + j : nullptr);
    }
    *reinterpret_cast<Vector*>(y + i) = out;
  });
}

template <int kThreads, class Vector>
void launch_norm(cudaStream_t stream, const NormWeight& weight, const Rows& rows) {
  using Group = RowGroup<kThreads>;
  launch(norm_kernel<kThreads, Vector>, dim3(divide_up(rows.count, Group::kRows)), dim3(Group::kBlock), 0, stream,
         weight, rows);
}

void norm_rows(cudaStream_t stream, const NormWeight& weight, const Rows& rows) {
  if (rows.count == 0) return;
  const bool is_vector = rows.size % 4 == 0 && rows.row_stride % 4 == 0 && rows.head_stride % 4 == 0 &&
                         is_float4(rows.x) && is_float4(rows.y) && is_float4(weight.weight);
  auto* launch_rows = rows.size <= kWarpFloats ? (is_vector ? launch_norm<kWarp, float4> : launch_norm<kWarp, float>)
                      : is_vector              ? launch_norm<kNormThreads, float4>
                                               : launch_norm<kNormThreads, float>;
  launch_rows(stream, weight, rows);
}

}  // namespace

void norm(cudaStream_t stream, const NormWeight& weight, const float* x, int rows, int size, float* y) {
  norm_rows(stream, weight, {x, y, static_cast<size_t>(size), 0, 1, rows, size});
}

void norm_heads(cudaStream_t stream, const NormWeight& weight, const HeadsView& heads) {
  norm_rows(stream, weight,
            {heads.first, heads.first, heads.row_stride, heads.head_stride, heads.heads, heads.rows * heads.heads,
             heads.head_dim});
}

}  // namespace turbomind::cuda
