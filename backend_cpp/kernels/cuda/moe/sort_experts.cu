#include "kernels/cuda/moe/sort_experts.h"

#include <algorithm>

#include "kernels/cuda/reduce.cuh"

// A counting sort without a word between blocks: each expert has a block, which counts everybody's pairs and then
// places its own, in order.

namespace turbomind::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

__global__ void __launch_bounds__(kThreads)
    sort_kernel(const int32_t* chosen, int pairs, int top_k, int part_rows, SortedPairs sorted) {
  await_previous();
  auto* counts = dynamic_shared<int32_t>();  // [experts]
  __shared__ int2 before;                    // pairs and parts of the experts before this one
  __shared__ int matches[kWarps];
  const int num_experts = gridDim.x;
  const int expert = blockIdx.x;
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  for (int e = threadIdx.x; e < num_experts; e += kThreads) counts[e] = 0;
  __syncthreads();
  for (int pair = threadIdx.x; pair < pairs; pair += kThreads) {
    if (chosen[pair] >= 0) atomicAdd(counts + chosen[pair], 1);
  }
  __syncthreads();
  if (warp == 0) {
    int2 sums = make_int2(0, 0);
    for (int e = lane; e < expert; e += kWarp) {
      sums.x += counts[e];
      sums.y += divide_up(counts[e], part_rows);
    }
    sums = make_int2(warp_sum(sums.x), warp_sum(sums.y));
    if (lane == 0) before = sums;
  }
  __syncthreads();
  const int count = counts[expert];
  const int parts = divide_up(count, part_rows);
  for (int i = threadIdx.x; i < parts; i += kThreads) {
    sorted.parts[before.y + i] = {expert, before.x + i * part_rows, min(part_rows, count - i * part_rows)};
  }
  if (expert == num_experts - 1) {
    if (threadIdx.x == 0) *sorted.part_count = before.y + parts;
    for (int slot = before.x + count + threadIdx.x; slot < pairs; slot += kThreads) {
      sorted.rows[slot] = 0;
      sorted.experts[slot] = -1;
    }
  }

  int next = before.x;
  for (int first = 0; first < pairs; first += kThreads) {
    const int pair = first + threadIdx.x;
    const bool is_mine = pair < pairs && chosen[pair] == expert;
    const unsigned mine = __ballot_sync(kAllLanes, is_mine);
    if (lane == 0) matches[warp] = __popc(mine);
    __syncthreads();
    int slot = next + __popc(mine & ((1u << lane) - 1));
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) slot += matches[w];
      next += matches[w];
    }
    if (expert == num_experts - 1 && pair < pairs && chosen[pair] < 0) sorted.slots[pair] = -1;
    if (is_mine) {
      sorted.rows[slot] = pair / top_k;
      sorted.experts[slot] = expert;
      sorted.slots[pair] = slot;
    }
    __syncthreads();  // the next round writes `matches`
  }
}

int part_limit(int rows, int top_k, int num_experts, int part_rows) {
  const int pairs = rows * top_k;
  return std::min(pairs, std::min(num_experts, pairs) + pairs / part_rows);
}

}  // namespace

SortedPairs take_pairs(Scratch& scratch, int rows, int top_k, int num_experts, int part_rows) {
  const auto pairs = static_cast<size_t>(rows) * top_k;
  const int limit = part_limit(rows, top_k, num_experts, part_rows);
  return {scratch.take<int32_t>(pairs),    scratch.take<int32_t>(pairs), scratch.take<int32_t>(pairs),
          scratch.take<ExpertRows>(limit), scratch.take<int32_t>(1),     limit};
}

size_t sorted_pairs_bytes(int rows, int top_k, int num_experts) {
  const auto pairs = static_cast<size_t>(rows) * top_k;
  return 3 * scratch_bytes<int32_t>(pairs) + scratch_bytes<ExpertRows>(part_limit(rows, top_k, num_experts, 1)) +
         scratch_bytes<int32_t>(1);
}

void sort_by_expert(cudaStream_t stream, const int32_t* chosen, int rows, int top_k, int num_experts, int part_rows,
                    const SortedPairs& sorted) {
  launch(sort_kernel, dim3(num_experts), dim3(kThreads), num_experts * sizeof(int32_t), stream, chosen, rows * top_k,
         top_k, part_rows, sorted);
}

}  // namespace turbomind::cuda
