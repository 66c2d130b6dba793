#include "kernels/cuda/elementwise/bring_pieces.h"

// A thread copies 16 bytes, so that all reads of the host's memory are under way at once; blockIdx.x is the piece.

namespace turbomind::cuda {

namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kBytes = sizeof(uint4);

__global__ void __launch_bounds__(kThreads) bring_kernel(StagedPieces staged) {
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

void bring_pieces(cudaStream_t stream, const StagedPieces& staged) {
  unsigned most = 0;
  for (size_t i = 0; i < staged.count; ++i) most = std::max(most, staged.pieces[i].bytes);
  if (most == 0) return;
  for (size_t i = 0; i < staged.count; ++i) next_launch_reads(staged.pieces[i].from, staged.pieces[i].bytes);
  launch(bring_kernel, dim3(static_cast<unsigned>(staged.count), divide_up(most, kThreads * kBytes)), dim3(kThreads), 0,
         stream, staged);
}

}  // namespace turbomind::cuda
