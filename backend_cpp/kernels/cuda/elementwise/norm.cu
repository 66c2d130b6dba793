#include "kernels/cuda/elementwise/elementwise.h"

#include "kernels/cuda/elementwise/row_norm.cuh"

namespace turbomind::cuda {

namespace {

template <int kThreads, class Vector>
__global__ void __launch_bounds__(RowGroup<kThreads>::kBlock)
    norm_kernel(NormWeight norm, HeadsView from, HeadsView to) {
  await_previous();
  constexpr int kWidth = sizeof(Vector) / sizeof(float);
  const int index = RowGroup<kThreads>::row();
  if (index >= from.rows * from.heads) return;  // whole warps, and no barrier where warps have rows
  const float* x = from.head(index / from.heads, index % from.heads);
  float* y = to.head(index / from.heads, index % from.heads);
  const RowNorm row_norm = norm_of_row<kThreads, Vector>(norm, x, from.head_dim);
  for_each<kThreads, Vector>(x, from.head_dim, [&](int i, const float* v) {
    const Vector scale = *reinterpret_cast<const Vector*>(norm.weight + i);
    const auto* scales = reinterpret_cast<const float*>(&scale);
    Vector out;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      reinterpret_cast<float*>(&out)[j] = row_norm(v[j], scales[j], norm.bias != nullptr ? norm.bias + i + j : nullptr);
    }
    *reinterpret_cast<Vector*>(y + i) = out;
  });
}

template <int kThreads, class Vector>
void launch_norm(cudaStream_t stream, const NormWeight& weight, const HeadsView& x, const HeadsView& y) {
  using Group = RowGroup<kThreads>;
  launch(norm_kernel<kThreads, Vector>, dim3(divide_up(x.rows * x.heads, Group::kRows)), dim3(Group::kBlock), 0, stream,
         weight, x, y);
}

bool has_vectors(const HeadsView& x) {
  return x.head_dim % 4 == 0 && x.row_stride % 4 == 0 && x.head_stride % 4 == 0 && is_float4(x.first);
}

}  // namespace

void norm(cudaStream_t stream, const NormWeight& weight, const HeadsView& x, const HeadsView& y) {
  if (x.rows * x.heads == 0) return;
  const bool is_vector = has_vectors(x) && has_vectors(y) && is_float4(weight.weight);
  auto* launch_rows = x.head_dim <= kWarpFloats ? (is_vector ? launch_norm<kWarp, float4> : launch_norm<kWarp, float>)
                      : is_vector               ? launch_norm<kNormThreads, float4>
                                                : launch_norm<kNormThreads, float>;
  launch_rows(stream, weight, x, y);
}

}  // namespace turbomind::cuda
