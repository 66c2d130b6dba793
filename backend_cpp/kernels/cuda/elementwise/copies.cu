#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/upcast.cuh"

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
  y[row * size + i] = scale * upcast(table[static_cast<size_t>(indices[row]) * size + i]);
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

constexpr int kChunk = 4;

// Block x is the row, y kThreads chunks of it.
__global__ void __launch_bounds__(kThreads)
    upcast_kernel(const uint16_t* rounded, const int32_t* filled, int width, float* to) {
  await_previous();
  const int i = (blockIdx.y * kThreads + threadIdx.x) * kChunk;
  if ((filled != nullptr && static_cast<int>(blockIdx.x) >= *filled) || i >= width) return;
  const size_t index = static_cast<size_t>(blockIdx.x) * width + i;
  const uint2 bits = *reinterpret_cast<const uint2*>(rounded + index);
  *reinterpret_cast<float4*>(to + index) =
      make_float4(__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xFFFF0000u), __uint_as_float(bits.y << 16),
                  __uint_as_float(bits.y & 0xFFFF0000u));
}

constexpr unsigned kBytes = sizeof(uint4);

// A thread copies 16 bytes, so that all reads of the host's memory are under way at once; blockIdx.x is the piece.
__global__ void __launch_bounds__(kThreads) upload_kernel(StagedPieces staged) {
  await_previous();
  const StagedPiece piece = staged.pieces[blockIdx.x];
  const unsigned first = (blockIdx.y * kThreads + threadIdx.x) * kBytes;
  if (first + kBytes <= piece.bytes) {
    *reinterpret_cast<uint4*>(piece.to + first) = *reinterpret_cast<const uint4*>(piece.from + first);
    return;
  }
  for (unsigned at = first; at < piece.bytes; at += sizeof(uint32_t)) {
    *reinterpret_cast<uint32_t*>(piece.to + at) = *reinterpret_cast<const uint32_t*>(piece.from + at);
  }
}

}  // namespace

void embed(cudaStream_t stream, const LinearWeight& table, const int32_t* tokens, int rows, float scale, float* y) {
  if (table.is_packed()) throw internal_error("an embedding must be of 32 or 16 bits");
  const auto gather = table.format == WeightFormat::kFloat32   ? launch_gather<float>
                      : table.format == WeightFormat::kFloat16 ? launch_gather<half>
                                                               : launch_gather<bf16>;
  gather(stream, table.data, tokens, rows, table.in_features, scale, y);
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

void upcast_rows(cudaStream_t stream, const uint16_t* rounded, int rows, int width, const int32_t* filled, float* to) {
  launch(upcast_kernel, rows_and(rows, divide_up(width, kThreads * kChunk)), dim3(kThreads), 0, stream, rounded, filled,
         width, to);
}

void upload_pieces(cudaStream_t stream, const StagedPieces& staged) {
  unsigned max_bytes = 0;
  for (size_t i = 0; i < staged.count; ++i) max_bytes = std::max(max_bytes, staged.pieces[i].bytes);
  if (max_bytes == 0) return;
  for (size_t i = 0; i < staged.count; ++i) next_launch_reads(staged.pieces[i].from, staged.pieces[i].bytes);
  launch(upload_kernel, dim3(static_cast<unsigned>(staged.count), divide_up(max_bytes, kThreads * kBytes)),
         dim3(kThreads), 0, stream, staged);
}

}  // namespace turbomind::cuda
