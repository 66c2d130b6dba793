#include "kernels/cuda/linear/gemv_shape.cuh"
#include "kernels/cuda/linear/linear_task.cuh"
#include "kernels/cuda/linear/quantized_sums.cuh"

// Few rows and codes of 8 or 4 bits: the weight is read once, and what a warp does for a byte of it must fit into the
// time in which the byte comes. docs/internals/cuda.md counts the instructions, and
// has what was measured.
//
// A block has two stripes of outputs; each of its 8 warps walks along slabs that are neighbours, so that scales and
// zero points act once a group (quantized_sums.cuh). Every lane copies the codes it alone needs to its own slots of a
// ring in shared memory, up to eight slabs ahead, so warps wait for no one until they add up their sums at the end, in
// order. Activations and constants, which are in caches, come into registers one slab and one group ahead. Codes of the
// first slabs, and constants of the first group, come while the launch before ends.

namespace turbomind::cuda {

namespace {

constexpr int kStripes = 2;
constexpr size_t kRingLimit = 96 << 10;  // of a block: two fit a multiprocessor of Hopper, one any other
constexpr int kMinSteps = 2;             // for a warp to be worth its part of the reduction

template <WeightFormat kFormat, int kRowTiles, int kUnit>
struct Quantized {
  static constexpr int kLoads = SlabFormat<kFormat>::kLoads;
  static constexpr int kChunkBytes = kLoads * 64;
  static constexpr int kStageSlots = kStripes * kUnit * kLoads * kGemvThreads;
  static constexpr size_t kStageBytes = sizeof(uint4) * kStageSlots;
  static constexpr int kMaxStages = 8 / kUnit;
  static constexpr int kStages = kRingLimit / kStageBytes < kMaxStages ? kRingLimit / kStageBytes : kMaxStages;
  static constexpr size_t kRingBytes = kStageBytes * kStages;
  static constexpr size_t kSumBytes = kWaySumBytes<kStripes, kRowTiles>;
  static constexpr size_t kSharedBytes = kRingBytes > kSumBytes ? kRingBytes : kSumBytes;
  static constexpr int kInputSums = kFormat == WeightFormat::kInt4 && kUnit == 2 ? 2 : 4;
  static constexpr bool kReadsAhead = kRowTiles == 1;  // of x; with more rows that takes too many registers
};

// A lane's rows of x, from chunk to chunk.
template <WeightFormat kFormat, int kRowTiles, int kUnit>
class RowChunks {
 public:
  __device__ __forceinline__ RowChunks(const LinearPart& part, int lane, int chunk) : input_(chunk * kChunk) {
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
      const int row = n * 8 + lane / 4;
      rows_[n] = part.x_row<float>(row < part.rows ? row : 0) + input_;
      ends_[n] = row < part.rows ? part.weight.in_features : 0;
    }
  }
  __device__ __forceinline__ void advance(int chunks) {
    input_ += chunks * kChunk;
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) rows_[n] += chunks * kChunk;
  }
  // Begins to read chunk `u` of a step; what is beyond a row or a group is 0.
  __device__ __forceinline__ void load(int u, bool has_chunk) {
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = u * kSlabChunks * kChunk + i * 4;
        next_[u][n][i] = make_float4(0, 0, 0, 0);
        if (has_chunk && input_ + at < ends_[n]) {
          next_[u][n][i] = *reinterpret_cast<const float4*>(rows_[n] + at);
        }
      }
    }
  }
  __device__ __forceinline__ void round(int u, uint4 (&x)[kRowTiles]) const {
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
      const float4 low = next_[u][n][0];
      const float4 high = next_[u][n][1];
      const float chunk[kChunk] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      x[n] = quantized_chunk<kFormat>(chunk);
    }
  }

 private:
  int input_;
  const float* rows_[kRowTiles];
  int ends_[kRowTiles];
  float4 next_[kUnit][kRowTiles][2];
};

template <WeightFormat kFormat, int kRowTiles, int kUnit>
__global__ void __launch_bounds__(kGemvThreads, kGemvBlocks) gemv_quantized_kernel(LinearTask task, float range) {
  using Shape = Quantized<kFormat, kRowTiles, kUnit>;
  using Walk = QuantizedWalk<kUnit>;
  start_weights(task);
  const LinearPart part = part_of<kRowTiles * 8, float>(task, blockIdx.z);
  if (part.rows == 0) return;
  const LinearWeight& weight = part.weight;
  const SlabShape shape = slab_shape(weight, true);
  const int lane = threadIdx.x % kWarp;
  const int stripe = blockIdx.x * kStripes;
  const StepRange steps =
      StepRange{0, Walk::steps(shape)}.part(blockIdx.y, task.splits).part(threadIdx.x / kWarp, kWays);
  const int first_chunk = Walk::chunk(shape, steps.first, lane);

  // A lane's tile in each stripe, and its place there. Outputs beyond the last tile are those of the first, unwritten.
  const int groups = shape.total / shape.per_group;
  const int tiles = divide_up(weight.out_features, kTileOutputs);
  const std::byte* quantized[kStripes];
  uint32_t entries[kStripes];
#pragma unroll
  for (int s = 0; s < kStripes; ++s) {
    const int tile = (stripe + s) * 2 + lane / 16;
    const size_t first = tile < tiles ? static_cast<size_t>(tile) * groups : 0;
    quantized[s] = static_cast<const std::byte*>(weight.data) +
                   (first * shape.chunks + first_chunk) * Shape::kChunkBytes + lane / 4 % 4 * 16;
    entries[s] =
        static_cast<uint32_t>(first + steps.first / Walk::steps_of_group(shape)) * kTileOutputs + lane / 4 % 4 * 4;
  }

  uint4* ring = dynamic_shared<uint4>() + threadIdx.x;
  Walk ahead(shape, steps.first, lane);
  const auto copy = [&](int stage) {
    uint4* slots = ring + stage * Shape::kStageSlots;
    const bool has_chunk = ahead.has_chunk();
    const int chunks = ahead.advance();
#pragma unroll
    for (int s = 0; s < kStripes; ++s) {
#pragma unroll
      for (int i = 0; i < kUnit * Shape::kLoads; ++i) {
        const int at = i / Shape::kLoads * kSlabChunks * Shape::kChunkBytes + i % Shape::kLoads * 64;
        cp_async_16(slots + (s * kUnit * Shape::kLoads + i) * kGemvThreads, quantized[s] + at, has_chunk);
      }
      quantized[s] += chunks * Shape::kChunkBytes;
    }
  };
#pragma unroll
  for (int i = 0; i < Shape::kStages - 1; ++i) {
    if (steps.first + i < steps.last) copy(i);
    cp_async_commit();
  }
  GroupConstants<kFormat> constants[kStripes];
  const auto load_constants = [&](int groups_on) {
#pragma unroll
    for (int s = 0; s < kStripes; ++s) {
      entries[s] += groups_on * kTileOutputs;
      constants[s].load(weight, entries[s]);
    }
  };
  if (steps.first < steps.last) load_constants(0);
  await_previous();

  Walk walk(shape, steps.first, lane);
  RowChunks<kFormat, kRowTiles, kUnit> rows(part, lane, first_chunk);
  const auto load_rows = [&] {
#pragma unroll
    for (int u = 0; u < kUnit; ++u) rows.load(u, walk.has_chunk());
  };
  if constexpr (Shape::kReadsAhead) load_rows();
  QuantizedSums<kFormat, kRowTiles> sums[kStripes];
  float x_sums[kRowTiles][Shape::kInputSums] = {};
  int stage = 0;
  for (int left = steps.last - steps.first; left > 0; --left) {
    if (left >= Shape::kStages) copy(stage == 0 ? Shape::kStages - 1 : stage - 1);
    cp_async_commit();
    uint4 x[kUnit][kRowTiles];
    const bool has_chunk = walk.has_chunk();
    const int chunks = walk.advance();
    if constexpr (Shape::kReadsAhead) {
#pragma unroll
      for (int u = 0; u < kUnit; ++u) rows.round(u, x[u]);
      rows.advance(chunks);
      if (left > 1) load_rows();
    }
    cp_async_wait<Shape::kStages - 1>();
    const uint4* slots = ring + stage * Shape::kStageSlots;
#pragma unroll
    for (int u = 0; u < kUnit; ++u) {
      if constexpr (!Shape::kReadsAhead) {
        rows.load(u, has_chunk);
        rows.round(u, x[u]);
      }
      if constexpr (kHasZeros<kFormat>) add_inputs(x[u], x_sums);
#pragma unroll
      for (int s = 0; s < kStripes; ++s) {
        uint4 loads[Shape::kLoads];
#pragma unroll
        for (int i = 0; i < Shape::kLoads; ++i) {
          loads[i] = slots[((s * kUnit + u) * Shape::kLoads + i) * kGemvThreads];
        }
        sums[s].add(loads, x[u]);
      }
    }
    if constexpr (!Shape::kReadsAhead) rows.advance(chunks);
    stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
    if (!walk.is_first() && left > 1) continue;
#pragma unroll
    for (int s = 0; s < kStripes; ++s) sums[s].fold(constants[s], x_sums);
#pragma unroll
    for (auto& of_rows : x_sums) {
#pragma unroll
      for (float& sum : of_rows) sum = 0;
    }
    load_constants(left > 1 ? 1 : 0);
  }
  cp_async_wait<0>();
  float totals[kStripes][kRowTiles][4][2];
#pragma unroll
  for (int s = 0; s < kStripes; ++s) {
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 8; ++i) totals[s][n][i / 2][i % 2] = sums[s].totals[n][i / 2][i % 2];
    }
  }
  write_stream<kStripes, kRowTiles>(task, part, range, stripe, totals);
}

template <WeightFormat kFormat, int kRowTiles, int kUnit>
void stream_steps(cudaStream_t stream, Scratch scratch, const LinearTask& task, int expert_parts) {
  const int steps = QuantizedWalk<kUnit>::steps(slab_shape(task.weight, true));
  launch_gemv<kStripes, kRowTiles>(stream, scratch, task, expert_parts, steps / (kWays * kMinSteps),
                                   gemv_quantized_kernel<kFormat, kRowTiles, kUnit>,
                                   Quantized<kFormat, kRowTiles, kUnit>::kSharedBytes, max_quantized_of(kFormat));
}

template <WeightFormat kFormat, int kRowTiles>
void gemv_rows(cudaStream_t stream, Scratch scratch, const LinearTask& task, int expert_parts) {
  if (task.weight.group % (2 * kSlabChunks * kChunk) == 0) {
    stream_steps<kFormat, kRowTiles, 2>(stream, scratch, task, expert_parts);
  } else {
    stream_steps<kFormat, kRowTiles, 1>(stream, scratch, task, expert_parts);
  }
}

template <WeightFormat kFormat>
void stream_format(cudaStream_t stream, Scratch scratch, const LinearTask& task, int part_rows, int expert_parts) {
  if (part_rows <= 8) return gemv_rows<kFormat, 1>(stream, scratch, task, expert_parts);
  gemv_rows<kFormat, 2>(stream, scratch, task, expert_parts);
}

}  // namespace

void gemv_quantized(cudaStream_t stream, Scratch scratch, const LinearTask& task, int part_rows, int expert_parts) {
  switch (task.weight.format) {
    case WeightFormat::kInt8:
      return stream_format<WeightFormat::kInt8>(stream, scratch, task, part_rows, expert_parts);
    case WeightFormat::kInt4:
      return stream_format<WeightFormat::kInt4>(stream, scratch, task, part_rows, expert_parts);
    case WeightFormat::kFloat8:
      return stream_format<WeightFormat::kFloat8>(stream, scratch, task, part_rows, expert_parts);
    default:
      throw internal_error("gemv_quantized has kernels for weights of 8 and 4 bits");
  }
}

}  // namespace turbomind::cuda
