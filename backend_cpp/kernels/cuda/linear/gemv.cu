#include "kernels/cuda/linear/gemv_shape.cuh"
#include "kernels/cuda/linear/linear_task.cuh"
#include "kernels/cuda/linear/weight_slab.cuh"

// Few rows and weights of 16 bits, of experts and heads (of codes: gemv_quantized.cu; of other layers: cuBLASLt, which
// is faster): the time is that of reading the weight once. x is read once for each block, out of the second-level
// cache: 4 rows / outputs of a block bytes for each weight.
//
// A block has a stripe of outputs and 8 warps, which take turns with the slabs along the inputs; blockIdx.y splits the
// inputs further where there are too few stripes to fill the machine. Every lane copies what it alone needs of weights
// and x to its own slots of a ring in shared memory, several slabs ahead, so warps wait for no one until they add up
// their sums at the end, in order. Weights of the first slabs come while the launch before ends.

namespace turbomind::cuda {

namespace {

constexpr int kThreads = kGemvThreads;
constexpr size_t kRingLimit = 112 << 10;  // of a block, so that two fit a multiprocessor of Hopper
constexpr int kMinSlabs = 4;              // for a warp to be worth its part of the reduction

template <WeightFormat kFormat, int kRowTiles>
struct Stream {
  using Format = SlabFormat<kFormat>;
  static constexpr int kRows = kRowTiles * 8;
  static constexpr int kXSlots = 2 * kRowTiles;
  static constexpr int kSlots = Format::kLoads + kXSlots;
  static constexpr size_t kStageBytes = sizeof(uint4) * kThreads * kSlots;
  static constexpr int kStages = kRingLimit / kStageBytes < 4 ? kRingLimit / kStageBytes : 4;
  static constexpr size_t kRingBytes = kStageBytes * kStages;
  static constexpr size_t kSumBytes = kWaySumBytes<1, kRowTiles>;
  static constexpr size_t kSharedBytes = kRingBytes > kSumBytes ? kRingBytes : kSumBytes;
  static_assert(kStages >= 2);
};

template <WeightFormat kFormat, int kRowTiles>
__global__ void __launch_bounds__(kThreads, kGemvBlocks) gemv_kernel(LinearTask task, float range) {
  using Shape = Stream<kFormat, kRowTiles>;
  using Format = SlabFormat<kFormat>;
  start_weights(task);
  const LinearPart part = part_of<Shape::kRows, float>(task, blockIdx.z);
  if (part.rows == 0) return;
  const LinearWeight& weight = part.weight;
  const SlabShape slabs = slab_shape(weight, false);
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int stripe = blockIdx.x;
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

  SlabCursor early(slabs, first + warp, kWays);
#pragma unroll
  for (int i = 0; i < Shape::kStages - 1; ++i) {
    if (first + warp + i * kWays < last) copy_slab<kFormat>(weight, early, stripe, lane, slots_of(i), kThreads);
    early.advance();
  }
  await_previous();

  SlabCursor ahead(slabs, first + warp, kWays);
  int ahead_slab = first + warp;
  int ahead_stage = 0;
  const auto copy_next = [&](bool has_weights) {
    if (ahead_slab < last) {
      uint4* slots = slots_of(ahead_stage);
      if (!has_weights) copy_slab<kFormat>(weight, ahead, stripe, lane, slots, kThreads);
      uint4* x_slots = slots + Format::kLoads * kThreads;
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

  float sums[1][kRowTiles][4][2] = {};
#pragma unroll
  for (int i = 0; i < Shape::kStages - 1; ++i) copy_next(true);
  int stage = 0;
  for (int slab = first + warp; slab < last; slab += kWays) {
    copy_next(false);
    cp_async_wait<Shape::kStages - 1>();
    const uint4* slots = slots_of(stage);
    const uint4* x_slots = slots + Format::kLoads * kThreads;
    uint4 x[kRowTiles];
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
      const auto low = bits_as<float4>(x_slots[2 * n * kThreads]);
      const auto high = bits_as<float4>(x_slots[(2 * n + 1) * kThreads]);
      const float chunk[kChunk] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      x[n] = round_chunk<kFormat>(chunk);
    }
    constexpr GroupConstants<kFormat> kNone{};
    const SlabOperands operands = read_slab<kFormat>(kNone, slots, kThreads);
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) multiply_slab<kFormat>(operands, kNone, x[n], sums[0][n]);
    stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
  }

  cp_async_wait<0>();
  write_stream<1, kRowTiles>(task, part, range, stripe, sums);
}

template <WeightFormat kFormat, int kRowTiles>
void gemv_rows(cudaStream_t stream, Scratch scratch, const LinearTask& task, int expert_parts) {
  const int slabs = slab_shape(task.weight, false).total;
  launch_gemv<1, kRowTiles>(stream, scratch, task, expert_parts, slabs / (kWays * kMinSlabs),
                            gemv_kernel<kFormat, kRowTiles>, Stream<kFormat, kRowTiles>::kSharedBytes,
                            range_of(kFormat));
}

template <WeightFormat kFormat>
void stream_format(cudaStream_t stream, Scratch scratch, const LinearTask& task, int part_rows, int expert_parts) {
  if (part_rows <= 8) return gemv_rows<kFormat, 1>(stream, scratch, task, expert_parts);
  gemv_rows<kFormat, 2>(stream, scratch, task, expert_parts);
}

}  // namespace

void gemv(cudaStream_t stream, Scratch scratch, const LinearTask& task, int part_rows, int expert_parts) {
  switch (task.weight.format) {
    case WeightFormat::kBFloat16:
      return stream_format<WeightFormat::kBFloat16>(stream, scratch, task, part_rows, expert_parts);
    case WeightFormat::kFloat16:
      return stream_format<WeightFormat::kFloat16>(stream, scratch, task, part_rows, expert_parts);
    case WeightFormat::kFloat32:
      throw internal_error("gemv has no kernel for float32 weights");
    default:
      return gemv_quantized(stream, scratch, task, part_rows, expert_parts);
  }
}

}  // namespace turbomind::cuda
