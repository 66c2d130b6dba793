// Weight of each split of a context in the result of a packed row: result = sum of factor times split_sums.
#pragma once

#include "kernels/cuda/attention/attention_task.cuh"
#include "kernels/cuda/reduce.cuh"

namespace turbomind::cuda {

constexpr int kSplitsOfLane = 2;
constexpr int kMaxSplits = kSplitsOfLane * kWarp;

struct SplitFactors {
  float of[kSplitsOfLane];  // of splits lane + kWarp i; 0 where there is none
};

// A warp works them out together. `first` numbers the row of split 0 (split_row). Splits may be those of other blocks
// of this launch, whose statistics are read from the second-level cache.
__device__ __forceinline__ SplitFactors split_factors(const AttentionTask& task, int kv_head, int packed_row,
                                                      size_t first) {
  const float sink = task.params.sinks != nullptr ? task.params.sinks[head_of(task, kv_head, packed_row)] : -INFINITY;
  float2 stats[kSplitsOfLane];  // a maximum, and the sum of weights below it
  float maximum = sink;
#pragma unroll
  for (int i = 0; i < kSplitsOfLane; ++i) {
    stats[i] = make_float2(-INFINITY, 0);
    const int split = static_cast<int>(threadIdx.x) % kWarp + i * kWarp;
    if (split < task.splits) {
      const size_t index = first + static_cast<size_t>(split) * task.tile_rows;
      stats[i] = __ldcg(reinterpret_cast<const float2*>(task.split_stats + index * 2));
    }
    maximum = fmaxf(maximum, stats[i].x);
  }
  maximum = warp_max(maximum);
  SplitFactors factors;
  float total = 0;
#pragma unroll
  for (int i = 0; i < kSplitsOfLane; ++i) {
    factors.of[i] = weight_below(stats[i].x, maximum);
    total += factors.of[i] * stats[i].y;
  }
  total = warp_sum(total) + weight_below(sink, maximum);
#pragma unroll
  for (float& factor : factors.of) factor /= total;
  return factors;
}

}  // namespace turbomind::cuda
