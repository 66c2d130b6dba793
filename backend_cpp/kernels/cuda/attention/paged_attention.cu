#include "kernels/cuda/attention/paged_attention.h"

#include <algorithm>
#include <bit>

#include "kernels/cuda/attention/attention_task.cuh"
#include "kernels/cuda/attention/cache_tile.cuh"
#include "kernels/cuda/attention/decode_plan.h"
#include "kernels/cuda/linear/linear_task.cuh"

namespace turbomind::cuda {

namespace {

constexpr int kMaxMergeWarps = 8;
constexpr int kBlocksPerMultiprocessor = 8;  // that a launch should have: about three run at a time, in a few rounds
constexpr int kMinSplit = 256;               // keys; fewer are not worth a block of their own ...
constexpr int kFewBlocks = 2;                // ... of a multiprocessor: with fewer, a split is as short as a tile,
                                             // or as half of one that has such splits
constexpr int kNarrowTile = 16;              // rows
constexpr int kWideTile = 64;

// Which kernel, and how its work is cut.
struct Plan {
  int warps;           // of a block of the decoding kernel (attention_decode.cuh); 0: it is another one
  bool is_reference;   // no tensor cores
  bool is_split_keys;  // of a tile kernel
  int tile_rows;
  int tiles;
  int splits;
};

// Rows of codes are copied four bytes at a time, or more.
bool has_tile_kernel(const CacheLayout& layout) {
  const int bits = bits_of(layout.type);
  return layout.type != CacheType::kFloat32 && std::max(layout.key_dim, layout.value_dim) <= 256 &&
         layout.key_dim * bits % 32 == 0 && layout.value_dim * bits % 32 == 0 &&
         tile_shared_bytes(layout, false) <= max_shared_memory();
}

// Some devices have less shared memory than the longest heads take whose keys are split.
bool can_split_keys(const CacheLayout& layout) {
  return tile_shared_bytes(layout, true) <= max_shared_memory();
}

// Splits of `keys` keys that are as short as may be, for a launch that would like `requested`. Halves of tiles are made
// where there is a split for each, or not at all: a split of several would be in more tiles than it need.
int short_splits(const CacheLayout& layout, int keys, int requested) {
  const int tile = tile_keys(layout);
  const int min_keys = requested >= keys / tile * 2 ? std::min(tile, kHalvedKeys) : tile;
  return std::min(requested, keys / min_keys);
}

Plan plan_of(const AttentionParams& params, const DeviceSpans& spans) {
  const CacheLayout& layout = params.layout;
  const int rows = spans.max_tokens * (params.num_heads / layout.num_kv_heads);
  Plan plan{};
  const int seen =
      params.window > 0 ? std::min(spans.max_context, params.window + spans.max_tokens) : spans.max_context;
  if (has_decode_kernel(params, rows)) {
    plan.tile_rows = kMaxDecodeRows;
    plan.tiles = 1;
    const DecodeCut cut = decode_cut(params, rows, spans.span_count * layout.num_kv_heads, std::max(seen, 1));
    plan.warps = cut.warps;
    plan.splits = cut.splits;
    return plan;
  }
  plan.is_reference = !has_tile_kernel(layout);
  plan.is_split_keys = !plan.is_reference && rows <= kNarrowTile && can_split_keys(layout);
  plan.tile_rows = plan.is_reference || plan.is_split_keys ? kNarrowTile : kWideTile;
  plan.tiles = divide_up(rows, plan.tile_rows);
  const int blocks = std::max(1, spans.span_count * layout.num_kv_heads * plan.tiles);
  const int requested = divide_up(kBlocksPerMultiprocessor * multiprocessor_count(), blocks);
  const int many = divide_up(kFewBlocks * multiprocessor_count(), blocks);
  const int few = plan.is_split_keys ? short_splits(layout, seen, many) : std::min(many, seen / kMinSplit);
  plan.splits = std::max(1, std::min({requested, std::max(few, seen / kMinSplit), kMaxSplits}));
  return plan;
}

size_t split_rows(const AttentionParams& params, const DeviceSpans& spans, const Plan& plan) {
  if (plan.splits == 1) return 0;
  return static_cast<size_t>(spans.span_count) * params.layout.num_kv_heads * plan.tiles * plan.splits * plan.tile_rows;
}

CacheRegion region_of(const CacheLayout& layout, int layer, bool is_key) {
  const int dim = is_key ? layout.key_dim : layout.value_dim;
  const size_t quantized_bytes = layout.quantized_bytes(dim);
  return {is_key ? layout.key_offset(layer, 0) : layout.value_offset(layer, 0), layout.head_bytes(dim),
          quantized_bytes / static_cast<size_t>(layout.block_len), quantized_bytes};
}

// A block puts the splits of one packed row together: its warps take turns with the splits, and add up in the end, in
// order. Block x is the packed row, y the key head, z the span.
__global__ void __launch_bounds__(kMaxMergeWarps* kWarp) merge_kernel(AttentionTask task) {
  await_previous();
  const DeviceSpan span = task.spans.spans[blockIdx.z];
  const int row = blockIdx.x;
  if (row >= span.count * task.group) return;
  const int kv_head = blockIdx.y;
  const int value_dim = task.params.layout.value_dim;
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int warps = blockDim.x / kWarp;
  const size_t first = split_row(task, blockIdx.z, kv_head, row / task.tile_rows, 0, row % task.tile_rows);
  const auto index_of = [&](int split) { return first + static_cast<size_t>(split) * task.tile_rows; };

  // Every warp works out the factors of all splits, and reads those of other lanes by shuffles.
  const SplitFactors factors = split_factors(task, kv_head, row, first);
  auto* sums = dynamic_shared<float>();  // [warps, value_dim]
  for (int d = lane; d < divide_up(value_dim, kWarp) * kWarp; d += kWarp) {
    float sum = 0;
#pragma unroll 4
    for (int split = warp; split < task.splits; split += warps) {
      const float low = __shfl_sync(kAllLanes, factors.of[0], split % kWarp);
      const float high = __shfl_sync(kAllLanes, factors.of[1], split % kWarp);
      if (d < value_dim) sum += (split < kWarp ? low : high) * task.split_sums[index_of(split) * value_dim + d];
    }
    if (d < value_dim) sums[warp * value_dim + d] = sum;
  }
  __syncthreads();
  const OutputRow out = output_of(task, span, kv_head, row);
  for (int d = threadIdx.x; d < value_dim; d += blockDim.x) {
    float sum = 0;
    for (int w = 0; w < warps; ++w) sum += sums[w * value_dim + d];
    out.write(d, sum);
  }
}

}  // namespace

size_t attention_workspace_floats(const AttentionParams& params, const DeviceSpans& spans) {
  return split_rows(params, spans, plan_of(params, spans)) * static_cast<size_t>(params.layout.value_dim + 2);
}

size_t max_attention_workspace_floats(const AttentionParams& params) {
  // A launch is split only if it has fewer blocks than are wanted, and then into less than twice as many as these.
  const int blocks = 2 * kBlocksPerMultiprocessor * multiprocessor_count();
  const int tile_rows = has_tile_kernel(params.layout) ? kWideTile : kNarrowTile;
  return static_cast<size_t>(blocks) * tile_rows * static_cast<size_t>(params.layout.value_dim + 2);
}

void paged_attention(cudaStream_t stream, const AttentionParams& params, const DeviceSpans& spans, const HeadsView& q,
                     float* workspace, const TypedRows& out, int32_t* counters) {
  const CacheLayout& layout = params.layout;
  const auto block_len = static_cast<unsigned>(layout.block_len);
  if (block_len < 16 || !std::has_single_bit(block_len)) {
    throw invalid_argument("the block length of a cache on a GPU must be a power of two from 16 on, got " +
                           std::to_string(block_len));
  }
  if (std::max(layout.key_dim, layout.value_dim) > 1024) {
    throw invalid_argument("attention on a GPU has heads of at most 1024 dimensions, got " +
                           std::to_string(layout.key_dim) + " and " + std::to_string(layout.value_dim));
  }
  if (spans.span_count == 0 || spans.max_tokens == 0) return;
  const Plan plan = plan_of(params, spans);
  AttentionTask task{};
  task.params = params;
  task.keys = region_of(layout, params.layer, true);
  task.values = region_of(layout, params.layer, false);
  task.block_bytes = layout.block_bytes();
  task.spans = spans;
  task.q = q;
  task.out = out;
  task.group = params.num_heads / layout.num_kv_heads;
  task.tiles = plan.tiles;
  task.tile_rows = plan.tile_rows;
  task.splits = plan.splits;
  task.log_block_len = std::countr_zero(block_len);
  task.split_sums = workspace;
  task.split_stats = workspace + split_rows(params, spans, plan) * static_cast<size_t>(layout.value_dim);
  if (plan.warps > 0 && spans.span_count * layout.num_kv_heads <= kSplitCounters) task.counters = counters;
  if (plan.is_reference) {
    attention_reference(stream, task);
  } else {
    with_tile_type(layout.type, 0, [&]<CacheType kType>(std::integral_constant<CacheType, kType>) {
      plan.warps > 0 ? decode_cache<kType>(stream, task, plan.warps)
                     : attention_tiles<kType>(stream, task, plan.is_split_keys);
      return 0;
    });
  }
  if (plan.splits == 1 || task.counters != nullptr) return;
  const int warps = std::min(plan.splits, kMaxMergeWarps);
  launch(merge_kernel, dim3(spans.max_tokens * task.group, layout.num_kv_heads, spans.span_count), dim3(warps * kWarp),
         sizeof(float) * warps * layout.value_dim, stream, task);
}

}  // namespace turbomind::cuda
