#include "kernels/cuda/moe/moe.h"

#include "kernels/cuda/reduce.cuh"

// A warp routes a row; what must be summed in order is summed by its first lane. The compiler may not fuse a product
// with a sum here: no product is summed.

namespace turbomind::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int kBlocks = 8;  // of a multiprocessor: for more, which the compiler prefers, it spills

// As exact as the C library's.
__device__ __forceinline__ float exponential(float v) {
  return static_cast<float>(exp(static_cast<double>(v)));
}

// One row's working space, in shared memory: kRowArrays arrays of 32 bits.
constexpr int kRowArrays = 5;
struct Row {
  float* scores;          // [experts]; weigh
  float* choice;          // [experts]; choose
  uint32_t* left;         // [experts]; 1 where not taken yet
  float* groups;          // [groups]; scores
  uint32_t* groups_left;  // [groups]
};

// Index of the largest of `values` that is left, the lowest among equals. Nothing is larger than NaN, nor NaN than
// anything; one that is left is found in any case.
__device__ int best_of(const float* values, const uint32_t* left, int count) {
  const int lane = threadIdx.x % kWarp;
  float best = -INFINITY;
  int index = count;
  int first = count;
  for (int i = lane; i < count; i += kWarp) {
    if (left[i] == 0) continue;
    first = min(first, i);
    if (values[i] > best || (values[i] == best && index == count)) {
      best = values[i];
      index = i;
    }
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, best, step);
    const int other_index = __shfl_xor_sync(kAllLanes, index, step);
    first = min(first, __shfl_xor_sync(kAllLanes, first, step));
    if (other > best || (other == best && other_index < index)) {
      best = other;
      index = other_index;
    }
  }
  return isnan(values[first]) ? first : index;
}

// The sum of term(i), from the first to the last, in every lane.
template <class Term>
__device__ float sum_in_order(int count, Term&& term) {
  float sum = 0;
  if (threadIdx.x % kWarp == 0) {
    for (int i = 0; i < count; ++i) sum += term(i);
  }
  return __shfl_sync(kAllLanes, sum, 0);
}

__device__ void score(const RouterParams& params, const float* logits, const Row& row) {
  const int lane = threadIdx.x % kWarp;
  if (params.score == RouterScore::kSigmoid) {
    for (int e = lane; e < params.num_experts; e += kWarp) row.scores[e] = 1.0f / (1.0f + exponential(-logits[e]));
  } else {
    float top = -INFINITY;
    for (int e = lane; e < params.num_experts; e += kWarp) top = fmaxf(top, logits[e]);
    top = warp_max(top);
    for (int e = lane; e < params.num_experts; e += kWarp) row.scores[e] = exponential(logits[e] - top);
    __syncwarp();
    const float sum = sum_in_order(params.num_experts, [&](int e) { return row.scores[e]; });
    for (int e = lane; e < params.num_experts; e += kWarp) row.scores[e] = row.scores[e] / sum;
  }
  for (int e = lane; e < params.num_experts; e += kWarp) {
    row.choice[e] = params.choice_bias != nullptr ? row.scores[e] + params.choice_bias[e] : row.scores[e];
  }
  __syncwarp();
}

// Leaves the experts of the best groups only.
__device__ void leave_out_groups(const RouterParams& params, const Row& row) {
  const int lane = threadIdx.x % kWarp;
  const int size = params.num_experts / params.num_groups;
  for (int g = lane; g < params.num_groups; g += kWarp) {
    float best = -INFINITY;
    float second = -INFINITY;
    for (int e = g * size; e < (g + 1) * size; ++e) {
      const float value = row.choice[e];
      const float smaller = value < best ? value : best;
      second = second < smaller ? smaller : second;
      best = best < value ? value : best;
    }
    row.groups[g] = params.group_score == GroupScore::kTop2 ? best + second : best;
    row.groups_left[g] = 1;
  }
  __syncwarp();
  for (int k = 0; k < params.top_groups; ++k) {
    const int best = best_of(row.groups, row.groups_left, params.num_groups);
    __syncwarp();
    if (lane == 0) row.groups_left[best] = 0;
    __syncwarp();
  }
  for (int e = lane; e < params.num_experts; e += kWarp) row.left[e] = row.groups_left[e / size] == 0 ? 1 : 0;
  __syncwarp();
}

__device__ void choose(const RouterParams& params, const Row& row, int32_t* experts, float* weights) {
  for (int k = 0; k < params.top_k; ++k) {
    const int best = best_of(row.choice, row.left, params.num_experts);
    __syncwarp();
    if (threadIdx.x % kWarp == 0) {
      row.left[best] = 0;
      experts[k] = best;
      weights[k] = row.scores[best];
    }
    __syncwarp();
  }
}

__device__ void mix(const RouterParams& params, const float* logits, const Row& row, int32_t* experts, float* weights) {
  for (int k = 0; k < params.top_k; ++k) {
    const int best = best_of(logits, row.left, params.num_experts);
    const float top = logits[best];
    for (int e = threadIdx.x % kWarp; e < params.num_experts; e += kWarp) {
      const float size = fabsf(logits[e]);
      const bool is_far = (top - logits[e]) / (size < top ? top : size) > 2 * params.mixer_jitter;
      row.scores[e] = row.left[e] != 0 && !is_far ? exponential(logits[e] - top) : 0.0f;
    }
    __syncwarp();
    const float sum = sum_in_order(params.num_experts, [&](int e) { return row.scores[e]; });
    if (threadIdx.x % kWarp == 0) {
      row.left[best] = 0;
      experts[k] = best;
      weights[k] = 1.0f / sum;
    }
    __syncwarp();
  }
}

__global__ void __launch_bounds__(kWarps* kWarp, kBlocks)
    route_kernel(RouterParams params, const float* all_logits, int rows, const int32_t* row_count, int32_t* all_experts,
                 float* all_weights) {
  await_previous();
  const int index = blockIdx.x * kWarps + threadIdx.x / kWarp;
  if (index >= rows) return;
  const int lane = threadIdx.x % kWarp;
  const int count = params.num_experts;
  auto* memory = dynamic_shared<float>() + threadIdx.x / kWarp * kRowArrays * count;
  const Row row{memory, memory + count, reinterpret_cast<uint32_t*>(memory + 2 * count), memory + 3 * count,
                reinterpret_cast<uint32_t*>(memory + 4 * count)};
  const float* logits = all_logits + static_cast<size_t>(index) * count;
  int32_t* experts = all_experts + static_cast<size_t>(index) * params.top_k;
  float* weights = all_weights + static_cast<size_t>(index) * params.top_k;
  if (row_count != nullptr && index >= *row_count) {  // a whole warp
    for (int k = lane; k < params.top_k; k += kWarp) {
      experts[k] = -1;
      weights[k] = 0;
    }
    return;
  }

  for (int e = lane; e < count; e += kWarp) row.left[e] = 1;
  __syncwarp();
  if (params.score == RouterScore::kSparsemixer) {
    mix(params, logits, row, experts, weights);
  } else {
    score(params, logits, row);
    if (params.top_groups < params.num_groups) leave_out_groups(params, row);
    choose(params, row, experts, weights);
  }
  if (lane != 0) return;
  float factor = params.scale;
  if (params.normalize) {
    float sum = 0;
    for (int k = 0; k < params.top_k; ++k) sum += weights[k];
    factor /= sum;
  }
  for (int k = 0; k < params.top_k; ++k) {
    weights[k] *= factor;
    if (params.expert_scales != nullptr) weights[k] *= params.expert_scales[experts[k]];
  }
}

}  // namespace

void route(cudaStream_t stream, const RouterParams& params, const float* logits, int rows, const int32_t* row_count,
           int32_t* experts, float* weights) {
  if (rows == 0) return;
  launch(route_kernel, dim3(divide_up(rows, kWarps)), dim3(kWarps * kWarp),
         kWarps * kRowArrays * sizeof(float) * params.num_experts, stream, params, logits, rows, row_count, experts,
         weights);
}

}  // namespace turbomind::cuda
