// Reduction of a context's splits (split-KV, attention_decode.cuh) by the last of its blocks: for few splits, a
// separate kernel would take longer.
#pragma once

#include "kernels/cuda/attention/attention_task.cuh"

namespace turbomind::cuda {

// Whether this block is the last of a context's splits, as is_last_block says it.
__device__ inline bool is_last_split(const AttentionTask& task) {
  return is_last_block(task.counters + blockIdx.z * gridDim.y + blockIdx.y, task.splits);
}

// Writes four dimensions of a result.
__device__ __forceinline__ void write_piece(const AttentionTask& task, const DeviceSpan& span, int kv_head, int row,
                                            int piece, const float4& value) {
  const OutputRow out = output_of(task, span, kv_head, row);
  out.write(piece * 4, value.x);
  out.write(piece * 4 + 1, value.y);
  out.write(piece * 4 + 2, value.z);
  out.write(piece * 4 + 3, value.w);
}

// Adds up the splits of a context. Shared memory may be written.
template <class Shape>
__device__ inline void add_splits(const AttentionTask& task, const DeviceSpan& span) {
  constexpr int kPieces = Shape::kDim / 4;  // of a row, of four dimensions
  const int lane = threadIdx.x % kWarp;
  const int threads = blockDim.x;
  const int kv_head = blockIdx.y;
  const int rows = span.count * task.group;
  const size_t first = split_row(task, blockIdx.z, kv_head, 0, 0, 0);
  const auto index_of = [&](int row, int split) { return first + static_cast<size_t>(split) * task.tile_rows + row; };
  auto* factors = dynamic_shared<float>();                                         // [rows, splits]
  auto* partial = reinterpret_cast<float4*>(factors + Shape::kRows * kMaxSplits);  // [threads]

  for (int row = threadIdx.x / kWarp; row < rows; row += threads / kWarp) {  // a warp a row
    const SplitFactors factors_of_row = split_factors(task, kv_head, row, index_of(row, 0));
#pragma unroll
    for (int i = 0; i < kSplitsOfLane; ++i) factors[row * kMaxSplits + lane + i * kWarp] = factors_of_row.of[i];
  }
  __syncthreads();

  // Groups of threads take turns with the splits, a thread a piece, and are added up in the end, in their order.
  // Threads of no whole group have none.
  const int pieces = rows * kPieces;
  const int groups = max(1, threads / pieces);
  const int group = threadIdx.x / pieces;
  for (int piece = threadIdx.x % pieces; group < groups && piece < pieces; piece += threads) {
    const int row = piece / kPieces;
    const int at = piece % kPieces;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int split = group; split < task.splits; split += groups) {
      const float factor = factors[row * kMaxSplits + split];
      const float4 partial_sum =
          __ldcg(reinterpret_cast<const float4*>(task.split_sums + index_of(row, split) * Shape::kDim) + at);
      sum.x += factor * partial_sum.x;
      sum.y += factor * partial_sum.y;
      sum.z += factor * partial_sum.z;
      sum.w += factor * partial_sum.w;
    }
    if (groups == 1) {
      write_piece(task, span, kv_head, row, at, sum);
    } else {
      partial[threadIdx.x] = sum;
    }
  }
  if (groups == 1) return;
  __syncthreads();
  if (static_cast<int>(threadIdx.x) >= pieces) return;
  float4 sum = partial[threadIdx.x];
  for (int other = 1; other < groups; ++other) {
    const float4 partial_sum = partial[other * pieces + threadIdx.x];
    sum.x += partial_sum.x;
    sum.y += partial_sum.y;
    sum.z += partial_sum.z;
    sum.w += partial_sum.w;
  }
  write_piece(task, span, kv_head, threadIdx.x / kPieces, threadIdx.x % kPieces, sum);
}

}  // namespace turbomind::cuda
