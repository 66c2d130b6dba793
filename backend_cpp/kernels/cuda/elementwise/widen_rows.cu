#include "kernels/cuda/elementwise/widen_rows.h"

namespace turbomind::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kChunk = 4;

// Block x is the row, y kThreads chunks of it.
__global__ void __launch_bounds__(kThreads)
    widen_kernel(const uint16_t* rounded, const int32_t* filled, int width, float* wide) {
  await_previous();
  const int i = (blockIdx.y * kThreads + threadIdx.x) * kChunk;
  if ((filled != nullptr && static_cast<int>(blockIdx.x) >= *filled) || i >= width) return;
  const size_t index = static_cast<size_t>(blockIdx.x) * width + i;
  const uint2 bits = *reinterpret_cast<const uint2*>(rounded + index);
  *reinterpret_cast<float4*>(wide + index) =
      make_float4(__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xFFFF0000u), __uint_as_float(bits.y << 16),
                  __uint_as_float(bits.y & 0xFFFF0000u));
}

}  // namespace

void widen_rows(cudaStream_t stream, const uint16_t* rounded, int rows, int width, const int32_t* filled, float* wide) {
  launch(widen_kernel, rows_and(rows, divide_up(width, kThreads * kChunk)), dim3(kThreads), 0, stream, rounded, filled,
         width, wide);
}

}  // namespace turbomind::cuda
