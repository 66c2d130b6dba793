// Task of the kernels of `linear`, `head_linear` and `add_experts`: one or more products of some rows with a weight,
// part blockIdx.z of them a block. How blocks share a product, and how its results are written.
#pragma once

#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/moe.h"

namespace turbomind::cuda {

struct LinearTask {
  LinearWeight weight;  // of experts and heads: the shape of each
  const void* x = nullptr;
  size_t x_stride = 0;  // elements from row to row
  float* y = nullptr;
  size_t y_stride = 0;
  int rows = 0;
  bool accumulates = false;

  // Heads: each has a weight, and a part of each row of x and y, of its own.
  int heads = 1;
  size_t x_head_stride = 0;
  size_t y_head_stride = 0;
  size_t weight_head_bytes = 0;

  // Experts: the device counts the parts.
  const std::byte* expert_weights = nullptr;  // the first expert's LinearWeight, on the device; null: no experts
  size_t expert_stride = 0;                   // bytes to the next one's
  const ExpertRows* expert_rows = nullptr;    // [*part_count]
  const int32_t* part_count = nullptr;
  const int32_t* sources = nullptr;  // row of x of each row of y, or null: the same

  // Inputs are shared by blockIdx.y = 0 .. splits - 1; the last to finish adds up what they found, in order.
  int splits = 1;
  float* partials = nullptr;    // [parts, splits, rows of a part, outputs padded to whole stripes]
  int32_t* counters = nullptr;  // [parts, blocks along the outputs], zero before and after
};

// A block's part.
struct LinearPart {
  LinearWeight weight;
  const void* x;
  size_t x_stride;
  const int32_t* sources;
  float* y;
  size_t y_stride;
  int rows;

  template <class T>
  __device__ __forceinline__ const T* x_row(int row) const {
    return static_cast<const T*>(x) + (sources != nullptr ? sources[row] : row) * x_stride;
  }
};

// Part number `part` when each has at most kRows rows. X is the type of x. There may be none: rows is 0.
template <int kRows, class X>
__device__ inline LinearPart part_of(const LinearTask& task, int part) {
  LinearPart result{task.weight, task.x, task.x_stride, nullptr, task.y, task.y_stride, 0};
  int first;
  const auto* x = static_cast<const X*>(task.x);
  if (task.expert_weights != nullptr) {
    if (part >= *task.part_count) return result;
    const ExpertRows rows = task.expert_rows[part];
    result.weight = *reinterpret_cast<const LinearWeight*>(task.expert_weights + rows.expert * task.expert_stride);
    result.rows = rows.count;
    first = rows.first;
    if (task.sources != nullptr) {
      result.sources = task.sources + first;
    } else {
      x += first * task.x_stride;
    }
  } else {
    const int head = part % task.heads;
    first = part / task.heads * kRows;
    result.weight.data = static_cast<const std::byte*>(task.weight.data) + head * task.weight_head_bytes;
    result.rows = min(kRows, task.rows - first);
    x += first * task.x_stride + head * task.x_head_stride;
    result.y += head * task.y_head_stride;
  }
  result.x = x;
  result.y += first * task.y_stride;
  return result;
}

// Parts that may exist: the grid's third dimension.
template <int kRows>
int part_limit(const LinearTask& task, int expert_parts) {
  return task.expert_weights != nullptr ? expert_parts : task.heads * divide_up(task.rows, kRows);
}

// The steps that part `index` of `count` has of [first, last).
struct StepRange {
  int first;
  int last;

  __device__ __forceinline__ StepRange part(int index, int count) const {
    const auto cut = [&](int i) { return first + static_cast<int>(static_cast<int64_t>(last - first) * i / count); };
    return {cut(index), cut(index + 1)};
  }
};

// Weights may be read from here on, the rest of memory after await_previous. Which experts a step needs, and of how
// many rows, is what earlier launches found.
__device__ __forceinline__ void start_weights(const LinearTask& task) {
  start_next();
  if (task.expert_weights != nullptr) await_previous();
}

// Whether this block is the last of a product's splits, as is_last_block says it.
__device__ inline bool is_last_split(const LinearTask& task) {
  return is_last_block(task.counters + blockIdx.z * gridDim.x + blockIdx.x, task.splits);
}

// Where this block's, or another split's, sums of a row are.
__device__ __forceinline__ float* partial_row(const LinearTask& task, int part_rows, int padded_outputs, int split,
                                              int row) {
  const size_t block_row = (static_cast<size_t>(blockIdx.z) * task.splits + split) * part_rows + row;
  return task.partials + block_row * padded_outputs;
}

// The sums over all splits, in order, of four neighbouring outputs of kCount rows, which are fetched together.
template <int kCount>
__device__ __forceinline__ void add_splits(const LinearTask& task, int part_rows, int padded_outputs,
                                           const int (&rows)[kCount], int output, float4 (&sums)[kCount]) {
#pragma unroll
  for (float4& sum : sums) sum = make_float4(0, 0, 0, 0);
#pragma unroll 2
  for (int split = 0; split < task.splits; ++split) {
    float4 more[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      more[i] = __ldcg(
          reinterpret_cast<const float4*>(partial_row(task, part_rows, padded_outputs, split, rows[i]) + output));
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      sums[i].x += more[i].x;
      sums[i].y += more[i].y;
      sums[i].z += more[i].z;
      sums[i].w += more[i].w;
    }
  }
}

// Writes up to four neighbouring outputs of a row: the sum times `range` and their scales, plus bias.
__device__ __forceinline__ void write_outputs(const LinearTask& task, const LinearPart& part, float range, int row,
                                              int output, const float4& sum) {
  if (row >= part.rows || output >= part.weight.out_features) return;
  float* y = part.y + row * part.y_stride + output;
  const float* bias = part.weight.bias;
  float values[4] = {sum.x * range, sum.y * range, sum.z * range, sum.w * range};
  const int count = min(4, part.weight.out_features - output);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i >= count) break;
    if (part.weight.output_scales != nullptr) values[i] *= part.weight.output_scales[output + i];
    if (bias != nullptr) values[i] += bias[output + i];
    if (task.accumulates) values[i] += y[i];
  }
  if (count == 4 && reinterpret_cast<uintptr_t>(y) % 16 == 0) {
    *reinterpret_cast<float4*>(y) = make_float4(values[0], values[1], values[2], values[3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < count) y[i] = values[i];
  }
}

// ---- the kernels ----

// Counters that a LinearTask may need.
inline constexpr int kSplitCounters = 4096;
// The most scratch memory gemv and tile_linear take.
size_t split_scratch_bytes();

// Each takes the parts of the task to be of at most `part_rows` rows; `expert_parts` is the number of parts that there
// can be where the task has experts.

// Weights of 16, 8 or 4 bits and x float32, whose rows are aligned to 16 bytes and, of a packed weight, in the order of
// the codes. 16-bit weights: in_features is a multiple of 8. At most kGemvRows rows.
inline constexpr int kGemvRows = 16;
void gemv(cudaStream_t stream, Scratch scratch, const LinearTask& task, int part_rows, int expert_parts = 0);
// Its part for weights of 8 and 4 bits.
void gemv_quantized(cudaStream_t stream, Scratch scratch, const LinearTask& task, int part_rows, int expert_parts);

// The same weights and x as round_rows makes it. At most kTileRows rows.
inline constexpr int kTileRows = 64;
void tile_linear(cudaStream_t stream, Scratch scratch, const LinearTask& task, int part_rows, int expert_parts = 0);

// Weights that it has a kernel for (linear.h), and x as round_for_ring makes it for `columns`.
int ring_columns(const LinearWeight& weight, int rows);
void ring_linear(cudaStream_t stream, Scratch scratch, const LinearTask& task, int columns);

// Any weight that is not packed, x float32; nothing needs to be aligned. kReferenceRows rows a part.
inline constexpr int kReferenceRows = 8;
void reference_linear(cudaStream_t stream, const LinearTask& task, int expert_parts = 0);

// Whether gemv and tile_linear take the weight.
bool has_whole_chunks(const LinearWeight& weight);

}  // namespace turbomind::cuda
