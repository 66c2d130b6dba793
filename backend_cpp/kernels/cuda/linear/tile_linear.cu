#include <algorithm>

#include "kernels/cuda/linear/linear_kernels.h"
#include "kernels/cuda/linear/weight_slab.cuh"

// More rows: a weight is read and widened once for 32 or 64 of them. Not timed on a GPU yet.
//
// A block has a stripe of outputs for each of its 4 warps and one part's rows. Each lane copies its weights to its own
// slots of a ring in shared memory, as in stream_linear; x is shared by the warps, and lies so that a lane finds its
// operand for rows 8 n .. 8 n + 7 at 32 n + lane: consecutive lanes read consecutive 16 bytes.

namespace turbomind::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kOutputs = kWarps * kStripe;
constexpr int kLeastSlabs = 8;  // for a split to be worth its reduction
constexpr int kMostSplits = 8;
constexpr int kSplitBlocks = 2;  // of a multiprocessor, that splits are to make: more cost more in their sums

template <WeightFormat kFormat, int kRowTiles>
struct Tile {
  using Format = SlabFormat<kFormat>;
  static constexpr int kRows = kRowTiles * 8;
  static constexpr int kXChunks = kRows * kSlabChunks;
  static constexpr int kStageChunks = Format::kLoads * kThreads + kXChunks;
  static constexpr int kStages = Format::kIsPacked ? 8 : 4;
  // That a multiprocessor should hold.
  static constexpr int kBlocks = !kHasZeros<kFormat> ? 2 : kRowTiles > 4 ? 3 : 4;
  static constexpr size_t kSharedBytes = sizeof(uint4) * kStageChunks * kStages;
  static_assert(kXChunks % kThreads == 0);
};

template <WeightFormat kFormat, int kRowTiles>
__global__ void __launch_bounds__(kThreads, Tile<kFormat, kRowTiles>::kBlocks)
    tile_linear_kernel(LinearTask task, float range) {
  await_previous();
  using Shape = Tile<kFormat, kRowTiles>;
  constexpr int kStages = Shape::kStages;
  using Format = SlabFormat<kFormat>;
  const LinearPart part = part_of<Shape::kRows, uint16_t>(task, blockIdx.z);
  if (part.rows == 0) return;
  const LinearWeight& weight = part.weight;
  const SlabShape slabs = slab_shape(weight, Format::kIsPacked);
  const int lane = threadIdx.x % kWarp;
  const int stripe = blockIdx.x * kWarps + threadIdx.x / kWarp;
  const int first = static_cast<int>(static_cast<int64_t>(slabs.total) * blockIdx.y / task.splits);
  const int last = static_cast<int>(static_cast<int64_t>(slabs.total) * (blockIdx.y + 1) / task.splits);

  // A thread copies chunk threadIdx.x % 4 of its rows, as its lane's place in a slab is.
  constexpr int kOwnChunks = Shape::kXChunks / kThreads;
  const uint16_t* x_rows[kOwnChunks];
#pragma unroll
  for (int i = 0; i < kOwnChunks; ++i) {
    const int row = (i * kThreads + threadIdx.x) / kSlabChunks;
    x_rows[i] = part.x_row<uint16_t>(row < part.rows ? row : 0);
  }
  auto* ring = dynamic_shared<uint4>();
  // Of codes: a lane's tile, and its place there. Outputs beyond the last tile are its own, unwritten.
  const int groups = slabs.total / slabs.per_group;
  const int tile = min(stripe * 2 + lane / 16, divide_up(weight.out_features, kTileOutputs) - 1);
  constexpr int kChunkBytes = Format::kLoads * 64;
  const int first_chunk = CodeWalk<1>::chunk(slabs, first, lane);
  const std::byte* codes = static_cast<const std::byte*>(weight.data) +
                           (static_cast<size_t>(tile) * groups * slabs.chunks + first_chunk) * kChunkBytes +
                           lane / 4 % 4 * 16;
  CodeWalk<1> ahead(slabs, first, lane);
  int input = first_chunk * kChunk;
  SlabCursor row_place(slabs, first, 1);
  int ahead_slab = first;
  int ahead_stage = 0;
  const auto copy_next = [&] {
    if (ahead_slab < last) {
      uint4* stage = ring + ahead_stage * Shape::kStageChunks;
      const bool has_chunk = ahead.has_chunk();
      const int chunks = ahead.advance();
      if constexpr (Format::kIsPacked) {
#pragma unroll
        for (int i = 0; i < Format::kLoads; ++i) {
          cp_async_16(stage + threadIdx.x + i * kThreads, codes + i * 64, has_chunk);
        }
        codes += chunks * kChunkBytes;
      } else {
        copy_slab<kFormat>(weight, row_place, stripe, lane, stage + threadIdx.x, kThreads);
        row_place.advance();
      }
      uint4* x = stage + Format::kLoads * kThreads;
#pragma unroll
      for (int i = 0; i < kOwnChunks; ++i) {
        const int chunk = i * kThreads + threadIdx.x;
        cp_async_16(x + chunk, x_rows[i] + input, chunk / kSlabChunks < part.rows && has_chunk);
      }
      input += chunks * kChunk;
      ++ahead_slab;
      ahead_stage = (ahead_stage + 1) % kStages;
    }
    cp_async_commit();
  };

#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) copy_next();
  // Scales and zero points of the group, and of the next, which come meanwhile.
  GroupConstants<kFormat> constants{};
  GroupConstants<kFormat> next{};
  CodeWalk<1> place(slabs, first, lane);
  uint32_t entry = static_cast<uint32_t>(tile * groups + first / slabs.per_group) * kTileOutputs + lane / 4 % 4 * 4;
  const uint32_t last_entry = static_cast<uint32_t>(tile * groups + groups - 1) * kTileOutputs + lane / 4 % 4 * 4;
  const auto load_next = [&] {
    entry = min(entry + kTileOutputs, last_entry);
    next.load(weight, entry);
  };
  if constexpr (Format::kIsPacked) {
    constants.load(weight, entry);
    load_next();
  }
  float sums[kRowTiles][4][2] = {};
  for (int slab = first; slab < last; ++slab) {
    cp_async_wait<kStages - 2>();
    __syncthreads();  // everyone's copies are here, and the stage before is free
    copy_next();
    const uint4* stage = ring + (slab - first) % kStages * Shape::kStageChunks;
    const uint4* x = stage + Format::kLoads * kThreads + lane;
    const SlabOperands operands = read_slab<kFormat>(constants, stage + threadIdx.x, kThreads);
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) multiply_slab<kFormat>(operands, constants, x[n * kWarp], sums[n]);
    if constexpr (Format::kIsPacked) {
      place.advance();
      if (place.is_first()) {
        constants = next;
        load_next();
      }
    }
  }
  cp_async_wait<0>();

  const int output = stripe * kStripe + lane / 4 * 4;
  const int padded = gridDim.x * kOutputs;
  const auto row_of = [&](int n, int c) { return n * 8 + lane % 4 * 2 + c; };
  const auto sum_of = [&](int n, int c) {
    return make_float4(sums[n][0][c], sums[n][1][c], sums[n][2][c], sums[n][3][c]);
  };
  const bool is_split = task.splits > 1;
  if (is_split) {
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if (row_of(n, c) >= part.rows) continue;
        float* partial = partial_row(task, Shape::kRows, padded, blockIdx.y, row_of(n, c)) + output;
        __stcg(reinterpret_cast<float4*>(partial), sum_of(n, c));
      }
    }
    if (!is_last_split(task)) return;
  }
#pragma unroll
  for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int row = row_of(n, c);
      if (row >= part.rows) continue;
      const float4 sum = is_split ? sum_of_splits(task, Shape::kRows, padded, row, output) : sum_of(n, c);
      write_outputs(task, part, range, row, output, sum);
    }
  }
}

template <WeightFormat kFormat, int kRowTiles>
void tile_rows(cudaStream_t stream, Scratch scratch, LinearTask task, int expert_parts) {
  using Shape = Tile<kFormat, kRowTiles>;
  const int blocks = divide_up(task.weight.out_features, kOutputs);
  const int parts = part_limit<Shape::kRows>(task, expert_parts);
  const int slabs = slab_shape(task.weight, Shape::Format::kIsPacked).total;
  task.splits = std::min({kMostSplits, slabs / kLeastSlabs, multiprocessor_count() * kSplitBlocks / (blocks * parts)});
  task.splits = std::max(task.splits, 1);
  if (task.splits > 1) {
    task.partials = scratch.take<float>(static_cast<size_t>(parts) * task.splits * Shape::kRows * blocks * kOutputs);
  }
  launch(tile_linear_kernel<kFormat, kRowTiles>, dim3(blocks, task.splits, parts), dim3(kThreads), Shape::kSharedBytes,
         stream, task, range_of(kFormat));
}

template <int kRowTiles>
void tile_format(cudaStream_t stream, Scratch scratch, const LinearTask& task, int expert_parts) {
  switch (task.weight.format) {
    case WeightFormat::kBFloat16:
      return tile_rows<WeightFormat::kBFloat16, kRowTiles>(stream, scratch, task, expert_parts);
    case WeightFormat::kFloat16:
      return tile_rows<WeightFormat::kFloat16, kRowTiles>(stream, scratch, task, expert_parts);
    case WeightFormat::kInt8:
      return tile_rows<WeightFormat::kInt8, kRowTiles>(stream, scratch, task, expert_parts);
    case WeightFormat::kInt4:
      return tile_rows<WeightFormat::kInt4, kRowTiles>(stream, scratch, task, expert_parts);
    case WeightFormat::kFloat8:
      return tile_rows<WeightFormat::kFloat8, kRowTiles>(stream, scratch, task, expert_parts);
    case WeightFormat::kFloat32:
      break;
  }
  throw internal_error("tile_linear has no kernel for float32 weights");
}

}  // namespace

void tile_linear(cudaStream_t stream, Scratch scratch, const LinearTask& task, int part_rows, int expert_parts) {
  if (part_rows <= kTileRows / 2) return tile_format<kTileRows / 16>(stream, scratch, task, expert_parts);
  tile_format<kTileRows / 8>(stream, scratch, task, expert_parts);
}

size_t split_scratch_bytes() {
  return sizeof(float) * kTileRows * kOutputs * kSplitBlocks * multiprocessor_count();
}

bool has_whole_chunks(const LinearWeight& weight) {
  return weight.is_packed() || (weight.in_features % kChunk == 0 && weight.format != WeightFormat::kFloat32 &&
                                reinterpret_cast<uintptr_t>(weight.data) % 16 == 0);
}

}  // namespace turbomind::cuda
