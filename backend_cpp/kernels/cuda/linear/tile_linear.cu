#include <algorithm>

#include "kernels/cuda/linear/linear_task.cuh"
#include "kernels/cuda/linear/weight_slab.cuh"

// More rows: a weight is read and widened once for 32 or 64 of them. docs/internals/cuda.md counts the instructions.
//
// A block of 8 warps has one part's rows, and outputs that kWays groups of warps share by dividing the inputs; a warp
// has two stripes of outputs (of 16 bits: one) and all rows, so every number that it widens and every activation that
// it fetches meets all it can. What moves for one byte of int4, with 256 outputs a block: rows / 64 bytes of x from the
// second-level cache; rows / 16 + rows / 64 + 2 through shared memory, which has 8.8 times the bandwidth of an H100's
// memory.
//
// Weights and x come through a ring in shared memory, in steps of kUnit slabs. Each lane copies and reads weights of
// its own; x is shared by a way's warps, which meet at a barrier of their own once a step. x is so that a lane finds
// its operand for rows 8 n .. 8 n + 7 at 32 n + lane. All these are consecutive 16 bytes for consecutive lanes, copied
// and read, so no two lanes of a quarter warp want one bank; as the inputs of a step may be in any order
// (weight_slab.cuh), one such load brings what ldmatrix .x4 would.
//
// In the end the ways add up in shared memory, in order, in rows that begin four banks apart, so that the lanes t of a
// quarter warp, two rows apart, do not meet either; then come splits, in order.

namespace turbomind::cuda {

namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kMaxStages = 5;
constexpr int kMinStages = 3;  // where there is less shared memory
constexpr int kMaxOutputs = 256;
constexpr int kFewWays = 2;
constexpr int kManyWays = 4;     // where outputs are few: half as many a block, and half the splits
constexpr int kMinWaySlabs = 8;  // for a split to be worth its reduction
constexpr int kMaxSplits = 8;

template <WeightFormat kFormat, int kRowTiles, int kUnit_, int kWays_>
struct Tile {
  using Format = SlabFormat<kFormat>;
  static constexpr int kUnit = kUnit_;
  static constexpr int kWays = kWays_;
  static constexpr int kRows = kRowTiles * 8;
  static constexpr int kStripes = Format::kIsPacked ? 2 : 1;  // of a warp
  static constexpr int kWayWarps = kWarps / kWays;
  static constexpr int kWayThreads = kWayWarps * kWarp;
  static constexpr int kOutputs = kWayWarps * kStripes * kStripe;
  static constexpr int kBlocks = kStripes * kRowTiles > 4 ? 1 : 2;  // that a multiprocessor should hold
  // In uint4, of a way.
  static constexpr int kWeightSlots = kStripes * kUnit * Format::kLoads * kWayThreads;
  static constexpr int kSlabSlots = kRows * kSlabChunks;  // of x
  static constexpr int kStageSlots = kWeightSlots + kUnit * kSlabSlots;
  static constexpr int kThreadRows = kSlabSlots / kWayThreads;  // whose chunks a thread copies
  // Floats of a row of sums.
  static constexpr int kSumStride = kOutputs + 4;

  static constexpr size_t shared_bytes(int stages) {
    return std::max(sizeof(uint4) * kWays * kStageSlots * stages, sizeof(float) * kRows * kSumStride);
  }
  static_assert(kSlabSlots % kWayThreads == 0 && kRows * kOutputs * kBlocks <= kTileRows * kMaxOutputs);
};

// Whether slabs of a step cannot overlap for want of registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
template <class Shape>
inline constexpr bool kIsShort = Shape::kRows == kTileRows;
#else
template <class Shape>
inline constexpr bool kIsShort = Shape::kRows == kTileRows && Shape::kWays == kManyWays;
#endif

// Until the oldest of a ring's stages is here.
__device__ __forceinline__ void wait_for_stage(int stages) {
  if (stages == kMaxStages) {
    cp_async_wait<kMaxStages - 2>();
  } else if (stages == kMaxStages - 1) {
    cp_async_wait<kMaxStages - 3>();
  } else {
    cp_async_wait<kMinStages - 2>();
  }
}

template <class Shape, WeightFormat kFormat, int kRowTiles>
__global__ void __launch_bounds__(kThreads, Shape::kBlocks)
    tile_linear_kernel(LinearTask task, float range, int stages) {
  using Format = SlabFormat<kFormat>;
  constexpr int kUnit = Shape::kUnit;
  constexpr int kStripes = Shape::kStripes;
  using Walk = QuantizedWalk<kUnit>;
  start_weights(task);
  const LinearPart part = part_of<Shape::kRows, uint16_t>(task, blockIdx.z);
  if (part.rows == 0) return;
  const LinearWeight& weight = part.weight;
  const SlabShape slabs = slab_shape(weight, Format::kIsPacked);
  const int lane = threadIdx.x % kWarp;
  const int thread = threadIdx.x % Shape::kWayThreads;
  const int way = threadIdx.x / Shape::kWayThreads;
  const int stripe = (blockIdx.x * Shape::kWayWarps + thread / kWarp) * kStripes;
  const StepRange steps = StepRange{0, Walk::steps(slabs)}.part(blockIdx.y, task.splits).part(way, Shape::kWays);
  const int first_chunk = Walk::chunk(slabs, steps.first, lane);
  uint4* ring = dynamic_shared<uint4>() + way * stages * Shape::kStageSlots;

  // Of codes: a lane's tile in each stripe, and its place there. Outputs beyond the last tile are its own, unwritten.
  constexpr int kChunkQuads = Format::kLoads * 4;  // of 16 bytes
  const int groups = slabs.total / slabs.per_group;
  const auto* quantized = static_cast<const uint4*>(weight.data);
  uint32_t quantized_offsets[kStripes];
  uint32_t entries[kStripes];
#pragma unroll
  for (int s = 0; s < kStripes; ++s) {
    const int tile = min((stripe + s) * 2 + lane / 16, divide_up(weight.out_features, kTileOutputs) - 1);
    const auto first = static_cast<uint32_t>(tile * groups);
    quantized_offsets[s] = (first * slabs.chunks + first_chunk) * kChunkQuads + lane / 4 % 4;
    entries[s] = first * kTileOutputs + lane / 4 % 4 * 4;
  }
  Walk weights_ahead(slabs, steps.first, lane);
  SlabCursor slab_ahead(slabs, steps.first, 1);
  const auto copy_weights = [&](int stage) {
    uint4* slots = ring + stage * Shape::kStageSlots + thread;
    if constexpr (Format::kIsPacked) {
      const bool has_chunk = weights_ahead.has_chunk();
      const int chunks = weights_ahead.advance();
#pragma unroll
      for (int s = 0; s < kStripes; ++s) {
#pragma unroll
        for (int i = 0; i < kUnit * Format::kLoads; ++i) {
          const int at = i / Format::kLoads * kSlabChunks * kChunkQuads + i % Format::kLoads * 4;
          cp_async_16(slots + (s * kUnit * Format::kLoads + i) * Shape::kWayThreads,
                      quantized + quantized_offsets[s] + at, has_chunk);
        }
        quantized_offsets[s] += chunks * kChunkQuads;
      }
    } else {
      copy_slab<kFormat>(weight, slab_ahead, stripe, lane, slots, Shape::kWayThreads);
      slab_ahead.advance();
    }
  };
#pragma unroll
  for (int i = 0; i < kMaxStages - 1; ++i) {
    if (i < stages - 1 && steps.first + i < steps.last) copy_weights(i);
  }

  await_previous();

  // A thread copies chunk threadIdx.x % 4 of its rows, as its lane's place in a slab is.
  const auto* x_first = static_cast<const uint16_t*>(part.x);
  uint32_t x_offsets[Shape::kThreadRows];
#pragma unroll
  for (int i = 0; i < Shape::kThreadRows; ++i) {
    const int row = (i * Shape::kWayThreads + thread) / kSlabChunks;
    const uint16_t* x_row = part.x_row<uint16_t>(row < part.rows ? row : 0);
    x_offsets[i] = static_cast<uint32_t>(x_row - x_first) + first_chunk * kChunk;
  }
  Walk x_ahead(slabs, steps.first, lane);
  const auto copy_x = [&](int stage) {
    uint4* slots = ring + stage * Shape::kStageSlots + Shape::kWeightSlots + thread;
    const bool has_chunk = x_ahead.has_chunk();
#pragma unroll
    for (int i = 0; i < Shape::kThreadRows; ++i) {
      const bool is_valid = (i * Shape::kWayThreads + thread) / kSlabChunks < part.rows && has_chunk;
      const uint16_t* from = x_first + x_offsets[i];
#pragma unroll
      for (int u = 0; u < kUnit; ++u) {
        cp_async_16(slots + u * Shape::kSlabSlots + i * Shape::kWayThreads, from + u * kSlabChunks * kChunk, is_valid);
      }
    }
    const int chunks = x_ahead.advance();
#pragma unroll
    for (uint32_t& offset : x_offsets) offset += chunks * kChunk;
  };
#pragma unroll
  for (int i = 0; i < kMaxStages - 1; ++i) {
    if (i >= stages - 1) break;
    if (steps.first + i < steps.last) copy_x(i);
    cp_async_commit();
  }

  // Scales and zero points of the group, and of the next, which come meanwhile.
  GroupConstants<kFormat> constants[kStripes] = {};
  GroupConstants<kFormat> next[kStripes] = {};
  const int group_steps = Walk::steps_of_group(slabs);
  int group = steps.first / group_steps;
  const auto load_constants = [&](GroupConstants<kFormat>(&to)[kStripes]) {
    if constexpr (Format::kIsPacked) {
#pragma unroll
      for (int s = 0; s < kStripes; ++s) {
        to[s].load(weight, entries[s] + static_cast<uint32_t>(min(group, groups - 1)) * kTileOutputs);
      }
      ++group;
    }
  };
  load_constants(constants);
  float sums[kStripes][kRowTiles][4][2] = {};
  int stage = 0;
  int left = steps.last - steps.first;
  for (int of_group = group_steps - steps.first % group_steps; left > 0; of_group = group_steps) {
    load_constants(next);
#pragma unroll 1
    for (int end = max(left - of_group, 0); left > end; --left) {
      wait_for_stage(stages);
      barrier(1 + way, Shape::kWayThreads);  // the way's copies are here, and the stage before is free
      if (left >= stages) {
        const int before = stage == 0 ? stages - 1 : stage - 1;
        copy_weights(before);
        copy_x(before);
      }
      cp_async_commit();
      const uint4* slots = ring + stage * Shape::kStageSlots;
#pragma unroll(kIsShort<Shape> ? 1 : kUnit)
      for (int u = 0; u < kUnit; ++u) {
        const uint4* x = slots + Shape::kWeightSlots + u * Shape::kSlabSlots + lane;
        SlabOperands operands[kStripes];
#pragma unroll
        for (int s = 0; s < kStripes; ++s) {
          operands[s] = read_slab<kFormat>(
              constants[s], slots + (s * kUnit + u) * Format::kLoads * Shape::kWayThreads + thread, Shape::kWayThreads);
        }
#pragma unroll
        for (int n = 0; n < kRowTiles; ++n) {
          const uint4 rows = x[n * kWarp];
#pragma unroll
          for (int s = 0; s < kStripes; ++s) multiply_slab<kFormat>(operands[s], constants[s], rows, sums[s][n]);
        }
      }
      stage = stage + 1 == stages ? 0 : stage + 1;
    }
#pragma unroll
    for (int s = 0; s < kStripes; ++s) constants[s] = next[s];
  }
  cp_async_wait<0>();

  auto* totals = dynamic_shared<float>();  // [rows, kSumStride]
  __syncthreads();
#pragma unroll 1
  for (int turn = 0; turn < Shape::kWays; ++turn) {
    if (turn == way) {
      float* thread_sums =
          totals + lane % 4 * 2 * Shape::kSumStride + thread / kWarp * kStripes * kStripe + lane / 4 * 4;
#pragma unroll
      for (int s = 0; s < kStripes; ++s) {
#pragma unroll
        for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            auto* quad = reinterpret_cast<float4*>(thread_sums + (n * 8 + c) * Shape::kSumStride + s * kStripe);
            float4 sum = turn == 0 ? make_float4(0, 0, 0, 0) : *quad;
            sum.x += sums[s][n][0][c];
            sum.y += sums[s][n][1][c];
            sum.z += sums[s][n][2][c];
            sum.w += sums[s][n][3][c];
            *quad = sum;
          }
        }
      }
    }
    __syncthreads();
  }

  constexpr int kQuads = Shape::kOutputs / 4;
  constexpr int kTurnRows = kThreads / kQuads;
  const int column = threadIdx.x % kQuads * 4;
  const int output = blockIdx.x * Shape::kOutputs + column;
  const int padded = gridDim.x * Shape::kOutputs;
  const int first_row = threadIdx.x / kQuads;
  const auto total_of = [&](int row) {
    return *reinterpret_cast<const float4*>(totals + row * Shape::kSumStride + column);
  };
  if (task.splits == 1) {
#pragma unroll 2
    for (int row = first_row; row < part.rows; row += kTurnRows) {
      write_outputs(task, part, range, row, output, total_of(row));
    }
    return;
  }
  for (int row = first_row; row < part.rows; row += kTurnRows) {
    float* partial = partial_row(task, Shape::kRows, padded, blockIdx.y, row) + output;
    __stcg(reinterpret_cast<float4*>(partial), total_of(row));
  }
  if (!is_last_split(task)) return;
  // Several rows at a time, whose partial sums come together. Rows there are none of are read and not written.
  constexpr int kRowsAtOnce = 4;
  static_assert(Shape::kRows % (kTurnRows * kRowsAtOnce) == 0);
#pragma unroll 1
  for (int row = first_row; row < part.rows; row += kTurnRows * kRowsAtOnce) {
    int rows[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) rows[i] = min(row + i * kTurnRows, part.rows - 1);
    float4 all[kRowsAtOnce];
    add_splits(task, Shape::kRows, padded, rows, output, all);
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) write_outputs(task, part, range, row + i * kTurnRows, output, all[i]);
  }
}

// How a product is cut into blocks.
struct Grid {
  int blocks;  // along the outputs
  int splits;
  int parts;

  int total() const { return blocks * splits * parts; }
};

template <class Shape>
Grid grid_of(const LinearTask& task, int expert_parts) {
  const int blocks = divide_up(task.weight.out_features, Shape::kOutputs);
  const int parts = part_limit<Shape::kRows>(task, expert_parts);
  const int slabs = slab_shape(task.weight, Shape::Format::kIsPacked).total;
  const int splits = std::min({kMaxSplits * kFewWays / Shape::kWays, slabs / (Shape::kWays * kMinWaySlabs),
                               multiprocessor_count() * Shape::kBlocks / (blocks * parts)});
  return {blocks, std::max(splits, 1), parts};
}

template <WeightFormat kFormat, int kRowTiles, int kUnit, int kWays>
void launch_tile(cudaStream_t stream, Scratch scratch, LinearTask task, int expert_parts) {
  using Shape = Tile<kFormat, kRowTiles, kUnit, kWays>;
  const Grid grid = grid_of<Shape>(task, expert_parts);
  task.splits = grid.splits;
  if (task.splits > 1) {
    task.partials = scratch.take<float>(static_cast<size_t>(grid.total()) * Shape::kRows * Shape::kOutputs);
  }
  const int resident = std::min(divide_up(grid.total(), multiprocessor_count()), Shape::kBlocks);
  int stages = kMaxStages;
  while (stages > kMinStages && Shape::shared_bytes(stages) * resident > max_shared_memory()) --stages;
  launch(tile_linear_kernel<Shape, kFormat, kRowTiles>, dim3(grid.blocks, grid.splits, grid.parts), dim3(kThreads),
         Shape::shared_bytes(stages), stream, task, range_of(kFormat), stages);
}

// Many ways where that takes no multiprocessor's work away, for less is written and read again by splits.
template <WeightFormat kFormat, int kRowTiles, int kUnit>
void tile_ways(cudaStream_t stream, Scratch scratch, const LinearTask& task, int expert_parts) {
  using Many = Tile<kFormat, kRowTiles, kUnit, kManyWays>;
  const int many = grid_of<Many>(task, expert_parts).total();
  const int few = grid_of<Tile<kFormat, kRowTiles, kUnit, kFewWays>>(task, expert_parts).total();
  if (many >= few && many <= multiprocessor_count() && Many::shared_bytes(kMinStages) <= max_shared_memory()) {
    return launch_tile<kFormat, kRowTiles, kUnit, kManyWays>(stream, scratch, task, expert_parts);
  }
  launch_tile<kFormat, kRowTiles, kUnit, kFewWays>(stream, scratch, task, expert_parts);
}

template <WeightFormat kFormat>
void tile_format(cudaStream_t stream, Scratch scratch, const LinearTask& task, int part_rows, int expert_parts) {
  constexpr int kMax = kTileRows / 8;
  const bool is_low = part_rows <= kTileRows / 2;
  if constexpr (kFormat == WeightFormat::kInt4) {
    if (task.weight.group % (2 * kSlabChunks * kChunk) == 0) {
      if (is_low) return tile_ways<kFormat, kMax / 2, 2>(stream, scratch, task, expert_parts);
      return tile_ways<kFormat, kMax, 2>(stream, scratch, task, expert_parts);
    }
  } else if constexpr (SlabFormat<kFormat>::kIsPacked) {
    if (is_low) return tile_ways<kFormat, kMax / 2, 1>(stream, scratch, task, expert_parts);
    return tile_ways<kFormat, kMax, 1>(stream, scratch, task, expert_parts);
  }
  if (is_low) return launch_tile<kFormat, kMax / 2, 1, kFewWays>(stream, scratch, task, expert_parts);
  launch_tile<kFormat, kMax, 1, kFewWays>(stream, scratch, task, expert_parts);
}

}  // namespace

void tile_linear(cudaStream_t stream, Scratch scratch, const LinearTask& task, int part_rows, int expert_parts) {
  switch (task.weight.format) {
    case WeightFormat::kBFloat16:
      return tile_format<WeightFormat::kBFloat16>(stream, scratch, task, part_rows, expert_parts);
    case WeightFormat::kFloat16:
      return tile_format<WeightFormat::kFloat16>(stream, scratch, task, part_rows, expert_parts);
    case WeightFormat::kInt8:
      return tile_format<WeightFormat::kInt8>(stream, scratch, task, part_rows, expert_parts);
    case WeightFormat::kInt4:
      return tile_format<WeightFormat::kInt4>(stream, scratch, task, part_rows, expert_parts);
    case WeightFormat::kFloat8:
      return tile_format<WeightFormat::kFloat8>(stream, scratch, task, part_rows, expert_parts);
    default:
      throw internal_error("tile_linear has kernels for weights of 16, 8 and 4 bits");
  }
}

size_t split_scratch_bytes() {
  return sizeof(float) * kTileRows * kMaxOutputs * multiprocessor_count();
}

bool has_whole_chunks(const LinearWeight& weight) {
  return weight.is_packed() || (weight.in_features % kChunk == 0 && weight.format != WeightFormat::kFloat32 &&
                                reinterpret_cast<uintptr_t>(weight.data) % 16 == 0);
}

}  // namespace turbomind::cuda
