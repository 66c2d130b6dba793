#include "kernels/cuda/attention/paged_attention.h"

#include <algorithm>
#include <bit>

#include "kernels/cuda/attention/attention_task.cuh"
#include "kernels/cuda/attention/tile_dims.cuh"

namespace turbomind::cuda {

namespace {

constexpr int kMergeWarps = 4;
constexpr int kBlocksPerMultiprocessor = 8;  // that a launch should have: about three run at a time, in a few rounds
constexpr int kLeastSplit = 256;             // keys; fewer are not worth a block of their own
constexpr int kMostSplits = 64;
constexpr int kNarrowTile = 16;  // rows
constexpr int kWideTile = 64;

// Which kernel, and how its work is cut.
struct Plan {
  bool is_plain;       // no tensor cores
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
         tile_shared_bytes(layout, false) <= most_shared_memory();
}

// Some devices have less shared memory than the longest heads take whose keys are split.
bool can_split_keys(const CacheLayout& layout) {
  return tile_shared_bytes(layout, true) <= most_shared_memory();
}

Plan plan_of(const AttentionParams& params, const DeviceSpans& spans) {
  const CacheLayout& layout = params.layout;
  const int rows = spans.max_rows * (params.num_heads / layout.num_kv_heads);
  Plan plan{};
  plan.is_plain = !has_tile_kernel(layout);
  plan.is_split_keys = !plan.is_plain && rows <= kNarrowTile && can_split_keys(layout);
  plan.tile_rows = plan.is_plain || plan.is_split_keys ? kNarrowTile : kWideTile;
  plan.tiles = divide_up(rows, plan.tile_rows);
  const int blocks = std::max(1, spans.span_count * layout.num_kv_heads * plan.tiles);
  const int seen = params.window > 0 ? std::min(spans.max_context, params.window + spans.max_rows) : spans.max_context;
  const int wanted = divide_up(kBlocksPerMultiprocessor * multiprocessor_count(), blocks);
  plan.splits = std::max(1, std::min({wanted, seen / kLeastSplit, kMostSplits}));
  return plan;
}

size_t split_rows(const AttentionParams& params, const DeviceSpans& spans, const Plan& plan) {
  if (plan.splits == 1) return 0;
  return static_cast<size_t>(spans.span_count) * params.layout.num_kv_heads * plan.tiles * plan.splits * plan.tile_rows;
}

CachePlace place_of(const CacheLayout& layout, int layer, bool is_key) {
  const int dim = is_key ? layout.key_dim : layout.value_dim;
  const size_t code_bytes = layout.code_bytes(dim);
  return {is_key ? layout.key_offset(layer, 0) : layout.value_offset(layer, 0), layout.head_bytes(dim),
          code_bytes / static_cast<size_t>(layout.block_len), code_bytes};
}

// A warp puts the splits of one packed row together; block x is packed rows, y the key head, z the span.
__global__ void __launch_bounds__(kMergeWarps* kWarp) merge_kernel(AttentionTask task) {
  const DeviceSpan span = task.spans.spans[blockIdx.z];
  const int row = blockIdx.x * kMergeWarps + threadIdx.x / kWarp;
  if (row >= span.count * task.group) return;
  const int kv_head = blockIdx.y;
  const int value_dim = task.params.layout.value_dim;
  const size_t first = split_row(task, blockIdx.z, kv_head, row / task.tile_rows, 0, row % task.tile_rows);
  const auto stats_of = [&](int split) {
    return task.split_stats + (first + static_cast<size_t>(split) * task.tile_rows) * 2;
  };
  const float sink = task.params.sinks != nullptr ? task.params.sinks[head_of(task, kv_head, row)] : -INFINITY;
  float maximum = sink;
  for (int split = 0; split < task.splits; ++split) maximum = fmaxf(maximum, stats_of(split)[0]);
  float total = weight_below(sink, maximum);
  for (int split = 0; split < task.splits; ++split) {
    total += weight_below(stats_of(split)[0], maximum) * stats_of(split)[1];
  }
  float* out = output_of(task, span, kv_head, row);
  for (int d = threadIdx.x % kWarp; d < value_dim; d += kWarp) {
    float sum = 0;
    for (int split = 0; split < task.splits; ++split) {
      const size_t index = first + static_cast<size_t>(split) * task.tile_rows;
      sum += weight_below(stats_of(split)[0], maximum) * task.split_sums[index * value_dim + d];
    }
    out[d] = sum / total;
  }
}

}  // namespace

size_t attention_workspace_floats(const AttentionParams& params, const DeviceSpans& spans) {
  return split_rows(params, spans, plan_of(params, spans)) * static_cast<size_t>(params.layout.value_dim + 2);
}

size_t most_attention_workspace_floats(const AttentionParams& params) {
  // A launch is split only if it has fewer blocks than are wanted, and then into less than twice as many as these.
  const int blocks = 2 * kBlocksPerMultiprocessor * multiprocessor_count();
  const int tile_rows = has_tile_kernel(params.layout) ? kWideTile : kNarrowTile;
  return static_cast<size_t>(blocks) * tile_rows * static_cast<size_t>(params.layout.value_dim + 2);
}

void paged_attention(cudaStream_t stream, const AttentionParams& params, const DeviceSpans& spans, const HeadsView& q,
                     float* workspace, float* out) {
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
  if (spans.span_count == 0 || spans.max_rows == 0) return;
  const Plan plan = plan_of(params, spans);
  AttentionTask task{};
  task.params = params;
  task.keys = place_of(layout, params.layer, true);
  task.values = place_of(layout, params.layer, false);
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
  if (plan.is_plain) {
    attend_plain(stream, task);
  } else if (layout.type == CacheType::kBFloat16) {
    attend_bfloat16(stream, task, plan.is_split_keys);
  } else if (layout.type == CacheType::kInt8) {
    attend_int8(stream, task, plan.is_split_keys);
  } else {
    attend_int4(stream, task, plan.is_split_keys);
  }
  if (plan.splits == 1) return;
  launch(merge_kernel, dim3(divide_up(spans.max_rows * task.group, kMergeWarps), layout.num_kv_heads, spans.span_count),
         dim3(kMergeWarps * kWarp), 0, stream, task);
}

}  // namespace turbomind::cuda
