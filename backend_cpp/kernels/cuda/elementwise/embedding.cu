#include "kernels/cuda/elementwise/embedding.h"

#include "kernels/cuda/widen.cuh"

// A thread copies one element; blockIdx.x is the row. Few bytes move: launching takes longer.

namespace turbomind::cuda {

namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const T* table, const int32_t* indices, int size, float scale, float* y) {
  await_previous();
  const int i = blockIdx.y * kThreads + threadIdx.x;
  if (i >= size) return;
  const size_t row = blockIdx.x;
  y[row * size + i] = scale * widen(table[static_cast<size_t>(indices[row]) * size + i]);
}

__global__ void __launch_bounds__(kThreads)
    scatter_kernel(const float* x, const int32_t* indices, int size, float* y, bool accumulate) {
  await_previous();
  const int i = blockIdx.y * kThreads + threadIdx.x;
  if (i >= size) return;
  const size_t row = blockIdx.x;
  float& to = y[static_cast<size_t>(indices[row]) * size + i];
  to = (accumulate ? to : 0.0f) + x[row * size + i];
}

__global__ void __launch_bounds__(kThreads) copy_heads_kernel(HeadsView from, HeadsView to) {
  await_previous();
  const int i = blockIdx.y * kThreads + threadIdx.x;
  if (i >= from.heads * from.head_dim) return;
  const int head = i / from.head_dim;
  to.head(blockIdx.x, head)[i % from.head_dim] = from.head(blockIdx.x, head)[i % from.head_dim];
}

template <class T>
void launch_gather(cudaStream_t stream, const void* table, const int32_t* indices, int rows, int size, float scale,
                   float* y) {
  if (rows == 0) return;
  launch(gather_kernel<T>, rows_and(rows, divide_up(size, kThreads)), dim3(kThreads), 0, stream,
         static_cast<const T*>(table), indices, size, scale, y);
}

}  // namespace

void embed(cudaStream_t stream, const LinearWeight& table, const int32_t* tokens, int rows, float scale, float* y) {
  switch (table.format) {
    case WeightFormat::kFloat32:
      return launch_gather<float>(stream, table.data, tokens, rows, table.in_features, scale, y);
    case WeightFormat::kBFloat16:
      return launch_gather<bf16>(stream, table.data, tokens, rows, table.in_features, scale, y);
    case WeightFormat::kFloat16:
      return launch_gather<half>(stream, table.data, tokens, rows, table.in_features, scale, y);
    case WeightFormat::kInt8:
    case WeightFormat::kInt4:
    case WeightFormat::kFloat8:
      break;
  }
  throw internal_error("an embedding must be of 32 or 16 bits");
}

void gather_rows(cudaStream_t stream, const float* x, const int32_t* indices, int count, int size, float* y) {
  launch_gather<float>(stream, x, indices, count, size, 1.0f, y);
}

void scatter_rows(cudaStream_t stream, const float* x, const int32_t* indices, int count, int size, float* y,
                  bool accumulate) {
  if (count == 0) return;
  launch(scatter_kernel, rows_and(count, divide_up(size, kThreads)), dim3(kThreads), 0, stream, x, indices, size, y,
         accumulate);
}

void copy_heads(cudaStream_t stream, const HeadsView& from, const HeadsView& to) {
  if (from.rows == 0) return;
  launch(copy_heads_kernel, rows_and(from.rows, divide_up(from.heads * from.head_dim, kThreads)), dim3(kThreads), 0,
         stream, from, to);
}

}  // namespace turbomind::cuda
