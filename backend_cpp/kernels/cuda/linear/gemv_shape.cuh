// Common parts of the GEMV kernels (gemv.cu, gemv_quantized.cu): a block of eight warps that divide the slabs of its
// stripes between them, and how their sums become results.
#pragma once

#include <algorithm>

#include "kernels/cuda/linear/linear_task.cuh"
#include "kernels/cuda/linear/weight_slab.cuh"

namespace turbomind::cuda {

inline constexpr int kWays = 8;
inline constexpr int kGemvThreads = kWays * kWarp;
inline constexpr int kGemvBlocks = 2;  // that a multiprocessor should hold
inline constexpr int kMaxGemvSplits = 16;

// Bytes of shared memory that the ways' sums take.
template <int kStripes, int kRowTiles>
inline constexpr size_t kWaySumBytes = sizeof(float) * kWays * kRowTiles * 8 * kStripes * kStripe;

// Adds up the warps' sums and the splits', in order, and writes them. sums[s][n][i][c]: of stripe stripe + s, output
// 4 g + i, row 8 n + 2 t + c. What the dynamic shared memory held is gone.
template <int kStripes, int kRowTiles>
__device__ __forceinline__ void write_stream(const LinearTask& task, const LinearPart& part, float range, int stripe,
                                             const float (&sums)[kStripes][kRowTiles][4][2]) {
  constexpr int kRows = kRowTiles * 8;
  constexpr int kOutputs = kStripes * kStripe;
  static_assert(kRows * kOutputs / 4 <= kGemvThreads);
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  __syncthreads();
  auto* shared = dynamic_shared<float>();  // [ways, rows, outputs]
#pragma unroll
  for (int s = 0; s < kStripes; ++s) {
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int row = warp * kRows + n * 8 + lane % 4 * 2 + c;
        *reinterpret_cast<float4*>(shared + row * kOutputs + s * kStripe + lane / 4 * 4) =
            make_float4(sums[s][n][0][c], sums[s][n][1][c], sums[s][n][2][c], sums[s][n][3][c]);
      }
    }
  }
  __syncthreads();
  constexpr int kQuads = kOutputs / 4;
  const int row = threadIdx.x / kQuads;
  const int column = threadIdx.x % kQuads * 4;
  const int output = stripe * kStripe + column;
  const bool has_quad = row < kRows;
  float4 sum = make_float4(0, 0, 0, 0);
  if (has_quad) {
    for (int way = 0; way < kWays; ++way) {
      const auto more = *reinterpret_cast<const float4*>(shared + (way * kRows + row) * kOutputs + column);
      sum.x += more.x;
      sum.y += more.y;
      sum.z += more.z;
      sum.w += more.w;
    }
  }
  if (task.splits > 1) {
    const int padded = gridDim.x * kOutputs;
    if (has_quad) {
      float* partial = partial_row(task, kRows, padded, blockIdx.y, row) + output;
      __stcg(reinterpret_cast<float4*>(partial), sum);
    }
    if (!is_last_split(task)) return;
    if (has_quad) {
      float4 sums_of_row[1];
      add_splits(task, kRows, padded, {row}, output, sums_of_row);
      sum = sums_of_row[0];
    }
  }
  if (has_quad) write_outputs(task, part, range, row, output, sum);
}

// Launches a kernel for few rows, in as many splits as fill the device, but at most this many.
template <int kStripes, int kRowTiles>
void launch_gemv(cudaStream_t stream, Scratch scratch, LinearTask task, int expert_parts, int max_splits,
                 void (*kernel)(LinearTask, float), size_t shared_bytes, float range) {
  constexpr int kRows = kRowTiles * 8;
  constexpr int kOutputs = kStripes * kStripe;
  const int blocks = divide_up(task.weight.out_features, kOutputs);
  const int parts = part_limit<kRows>(task, expert_parts);
  task.splits = std::min({kMaxGemvSplits, max_splits, multiprocessor_count() * kGemvBlocks / (blocks * parts)});
  task.splits = std::max(task.splits, 1);
  if (task.splits > 1) {
    task.partials = scratch.take<float>(static_cast<size_t>(parts) * task.splits * kRows * blocks * kOutputs);
  }
  launch(kernel, dim3(blocks, task.splits, parts), dim3(kGemvThreads), shared_bytes, stream, task, range);
}

}  // namespace turbomind::cuda
