#include <algorithm>

#include "kernels/cuda/linear/linear_kernels.h"
#include "kernels/cuda/linear/weight_slab.cuh"

// Few rows: the time is that of reading the weight once. x is read once for each block, out of the second-level cache:
// 4 rows / outputs of a block bytes for each weight. Not timed on a GPU yet.
//
// A block has one or two stripes of outputs and 8 warps, which take turns with the slabs along the inputs; blockIdx.y
// splits the inputs further where there are too few stripes to fill the machine. Every lane copies what it alone needs
// of weights and x to its own slots of a ring in shared memory, several slabs ahead, so warps wait for no one until
// they add up their sums at the end, in order.

namespace turbomind::cuda {

namespace {

constexpr int kWays = 8;
constexpr int kThreads = kWays * kWarp;
constexpr int kBlocksOnMultiprocessor = 2;
constexpr size_t kRingLimit = 112 << 10;  // of a block, so that two fit a multiprocessor of Hopper
constexpr int kLeastSlabs = 4;            // for a warp to be worth its part of the reduction
constexpr int kMostSplits = 16;

template <WeightFormat kFormat, int kRowTiles>
struct Stream {
  using Format = SlabFormat<kFormat>;
  static constexpr int kStripes = Format::kIsPacked ? 2 : 1;
  static constexpr int kOutputs = kStripes * kStripe;
  static constexpr int kRows = kRowTiles * 8;
  static constexpr int kXSlots = 2 * kRowTiles;
  static constexpr int kSlots = kStripes * Format::kSlots + kXSlots;
  static constexpr size_t kStageBytes = sizeof(uint4) * kThreads * kSlots;
  static constexpr int kStages = kRingLimit / kStageBytes < 4 ? kRingLimit / kStageBytes : 4;
  static constexpr size_t kRingBytes = kStageBytes * kStages;
  static constexpr size_t kSumBytes = sizeof(float) * kWays * kRows * kOutputs;
  static constexpr size_t kSharedBytes = kRingBytes > kSumBytes ? kRingBytes : kSumBytes;
  static_assert(kStages >= 2);
  static_assert(kRows * kOutputs / 4 <= kThreads);
};

template <WeightFormat kFormat, int kRowTiles>
__global__ void __launch_bounds__(kThreads, kBlocksOnMultiprocessor)
    stream_linear_kernel(LinearTask task, float range) {
  using Shape = Stream<kFormat, kRowTiles>;
  using Format = SlabFormat<kFormat>;
  const LinearPart part = part_of<Shape::kRows, float>(task, blockIdx.z);
  if (part.rows == 0) return;
  const LinearWeight& weight = part.weight;
  const SlabShape slabs = slab_shape(weight, Format::kIsPacked);
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int stripe = blockIdx.x * Shape::kStripes;
  const int first = static_cast<int>(static_cast<int64_t>(slabs.total) * blockIdx.y / task.splits);
  const int last = static_cast<int>(static_cast<int64_t>(slabs.total) * (blockIdx.y + 1) / task.splits);

  auto* ring = dynamic_shared<uint4>() + threadIdx.x;
  const auto slots_of = [&](int stage) { return ring + stage * Shape::kSlots * kThreads; };
  const float* x_rows[kRowTiles];
#pragma unroll
  for (int n = 0; n < kRowTiles; ++n) {
    const int row = n * 8 + lane / 4;
    x_rows[n] = part.x_row<float>(row < part.rows ? row : 0);
  }

  SlabCursor ahead(slabs, first + warp, kWays);
  int ahead_slab = first + warp;
  int ahead_stage = 0;
  const auto copy_next = [&] {
    if (ahead_slab < last) {
      uint4* slots = slots_of(ahead_stage);
#pragma unroll
      for (int s = 0; s < Shape::kStripes; ++s) {
        copy_slab<kFormat>(weight, slabs, ahead, stripe + s, lane, slots + s * Format::kSlots * kThreads, kThreads);
      }
      uint4* x_slots = slots + Shape::kStripes * Format::kSlots * kThreads;
      const int input = ahead.input(lane);
#pragma unroll
      for (int i = 0; i < Shape::kXSlots; ++i) {
        const int from = input + i % 2 * 4;
        const bool is_valid = ahead.has_chunk(lane) && i / 2 * 8 + lane / 4 < part.rows && from < weight.in_features;
        cp_async_16(x_slots + i * kThreads, x_rows[i / 2] + (is_valid ? from : 0), is_valid);
      }
      ahead.advance();
      ahead_slab += kWays;
      ahead_stage = ahead_stage + 1 == Shape::kStages ? 0 : ahead_stage + 1;
    }
    cp_async_commit();
  };

  float sums[Shape::kStripes][kRowTiles][4][2] = {};
#pragma unroll
  for (int i = 0; i < Shape::kStages - 1; ++i) copy_next();
  int stage = 0;
  for (int slab = first + warp; slab < last; slab += kWays) {
    copy_next();
    cp_async_wait<Shape::kStages - 1>();
    const uint4* slots = slots_of(stage);
    const uint4* x_slots = slots + Shape::kStripes * Format::kSlots * kThreads;
    uint4 x[kRowTiles];
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
      const auto low = bits_as<float4>(x_slots[2 * n * kThreads]);
      const auto high = bits_as<float4>(x_slots[(2 * n + 1) * kThreads]);
      const float chunk[kChunk] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      x[n] = round_chunk<kFormat>(chunk);
    }
#pragma unroll
    for (int s = 0; s < Shape::kStripes; ++s) {
      const uint4* own = slots + s * Format::kSlots * kThreads;
      const SlabOperands operands = read_slab<kFormat>(weight, own, kThreads);
      float scales[4] = {};
      if constexpr (Format::kIsPacked) read_scales<kFormat>(weight, own, kThreads, scales);
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) multiply_slab<kFormat>(operands, scales, x[n], sums[s][n]);
    }
    stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
  }

  // The ring becomes [ways, rows, outputs].
  cp_async_wait<0>();
  __syncthreads();
  auto* shared = dynamic_shared<float>();
#pragma unroll
  for (int s = 0; s < Shape::kStripes; ++s) {
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int row = warp * Shape::kRows + n * 8 + lane % 4 * 2 + c;
        *reinterpret_cast<float4*>(shared + row * Shape::kOutputs + s * kStripe + lane / 4 * 4) =
            make_float4(sums[s][n][0][c], sums[s][n][1][c], sums[s][n][2][c], sums[s][n][3][c]);
      }
    }
  }
  __syncthreads();
  constexpr int kQuads = Shape::kOutputs / 4;
  const int row = threadIdx.x / kQuads;
  const int column = threadIdx.x % kQuads * 4;
  const int output = stripe * kStripe + column;
  const bool has_quad = row < Shape::kRows;
  float4 sum = make_float4(0, 0, 0, 0);
  if (has_quad) {
    for (int way = 0; way < kWays; ++way) {
      const auto more =
          *reinterpret_cast<const float4*>(shared + (way * Shape::kRows + row) * Shape::kOutputs + column);
      sum.x += more.x;
      sum.y += more.y;
      sum.z += more.z;
      sum.w += more.w;
    }
  }
  if (task.splits > 1) {
    const int padded = gridDim.x * Shape::kOutputs;
    if (has_quad) {
      float* partial = partial_row(task, Shape::kRows, padded, blockIdx.y, row) + output;
      __stcg(reinterpret_cast<float4*>(partial), sum);
    }
    if (!is_last_split(task)) return;
    if (has_quad) sum = sum_of_splits(task, Shape::kRows, padded, row, output);
  }
  if (has_quad) write_outputs(task, part, range, row, output, sum);
}

template <WeightFormat kFormat, int kRowTiles>
void stream_rows(cudaStream_t stream, Scratch scratch, LinearTask task, int expert_parts) {
  using Shape = Stream<kFormat, kRowTiles>;
  const int blocks = divide_up(task.weight.out_features, Shape::kOutputs);
  const int parts = part_limit<Shape::kRows>(task, expert_parts);
  const int slabs = slab_shape(task.weight, Shape::Format::kIsPacked).total;
  task.splits = std::min({kMostSplits, slabs / (kWays * kLeastSlabs),
                          multiprocessor_count() * kBlocksOnMultiprocessor / (blocks * parts)});
  task.splits = std::max(task.splits, 1);
  if (task.splits > 1) {
    task.partials =
        scratch.take<float>(static_cast<size_t>(parts) * task.splits * Shape::kRows * blocks * Shape::kOutputs);
  }
  launch(stream_linear_kernel<kFormat, kRowTiles>, dim3(blocks, task.splits, parts), dim3(kThreads),
         Shape::kSharedBytes, stream, task, range_of(kFormat));
}

template <int kRowTiles>
void stream_format(cudaStream_t stream, Scratch scratch, const LinearTask& task, int expert_parts) {
  switch (task.weight.format) {
    case WeightFormat::kBFloat16:
      return stream_rows<WeightFormat::kBFloat16, kRowTiles>(stream, scratch, task, expert_parts);
    case WeightFormat::kFloat16:
      return stream_rows<WeightFormat::kFloat16, kRowTiles>(stream, scratch, task, expert_parts);
    case WeightFormat::kInt8:
      return stream_rows<WeightFormat::kInt8, kRowTiles>(stream, scratch, task, expert_parts);
    case WeightFormat::kInt4:
      return stream_rows<WeightFormat::kInt4, kRowTiles>(stream, scratch, task, expert_parts);
    case WeightFormat::kFloat8:
      return stream_rows<WeightFormat::kFloat8, kRowTiles>(stream, scratch, task, expert_parts);
    case WeightFormat::kFloat32:
      break;
  }
  throw internal_error("stream_linear has no kernel for float32 weights");
}

}  // namespace

void stream_linear(cudaStream_t stream, Scratch scratch, const LinearTask& task, int part_rows, int expert_parts) {
  if (part_rows <= 8) return stream_format<1>(stream, scratch, task, expert_parts);
  stream_format<2>(stream, scratch, task, expert_parts);
}

}  // namespace turbomind::cuda
