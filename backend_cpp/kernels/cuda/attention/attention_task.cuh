// Common parts of attention kernels: their argument, the layout of the cache, and how a context that is split over
// blocks is put together.
//
// Query heads of one key/value head are packed: packed row m of a span is token m / group, head m % group of the key
// head's own. Packed rows are cut into tiles; the keys a tile sees are cut into splits, each computed by a block of its
// own; merge (paged_attention.cu) adds them up.
#pragma once

#include "kernels/cuda/attention/paged_attention.h"
#include "kernels/cuda/reduce.cuh"

namespace turbomind::cuda {

constexpr float kLog2E = 1.4426950408889634f;

// Host's description of a layer's cache, for the keys or for the values.
struct CacheRegion {
  size_t first;            // of head 0 in a block, in bytes
  size_t head_bytes;       // from one head to the next
  size_t row_bytes;        // codes of a token
  size_t quantized_bytes;  // codes of a head
};

struct AttentionTask {
  AttentionParams params;
  CacheRegion keys;
  CacheRegion values;
  size_t block_bytes;
  DeviceSpans spans;
  HeadsView q;
  TypedRows out;
  int group;           // query heads of a key head
  int tiles;           // of a span and key head
  int tile_rows;       // packed rows of a tile
  int splits;          // of a tile's keys
  int log_block_len;   // block_len is a power of two
  float* split_sums;   // [spans, key heads, tiles, splits, tile_rows, value_dim]: sum of weight times value ...
  float* split_stats;  // [spans, key heads, tiles, splits, tile_rows, 2]: ... where weight is exp(score - the first of
                       // these), and the sum of the weights
  int32_t* counters;   // of SplitCounters (linear/linear.h), or null: merge adds the splits up
};

// Numbers split results: the row of split_sums and split_stats.
__device__ __forceinline__ size_t split_row(const AttentionTask& task, int span, int kv_head, int tile, int split,
                                            int row) {
  size_t index = static_cast<size_t>(span) * task.params.layout.num_kv_heads + kv_head;
  index = (index * task.tiles + tile) * task.splits + split;
  return index * task.tile_rows + row;
}

__device__ __forceinline__ int position_of(const AttentionTask& task, const DeviceSpan& span, int packed_row) {
  return span.first_position + packed_row / task.group;
}

// One past the last key that a packed row sees.
__device__ __forceinline__ int kv_len_of(const AttentionTask& task, const DeviceSpan& span, int packed_row) {
  const int row = packed_row / task.group;
  return task.params.kv_lens != nullptr ? task.params.kv_lens[span.first_token + row] : span.first_position + row + 1;
}

__device__ __forceinline__ int head_of(const AttentionTask& task, int kv_head, int packed_row) {
  return kv_head * task.group + packed_row % task.group;
}

__device__ __forceinline__ const float* query_of(const AttentionTask& task, const DeviceSpan& span, int kv_head,
                                                 int packed_row) {
  return task.q.head(static_cast<size_t>(span.first_token + packed_row / task.group),
                     head_of(task, kv_head, packed_row));
}

// The result of one head of one row, or what a split has of it.
struct OutputRow {
  void* first;
  bool is_bfloat16;

  __device__ __forceinline__ void write(int d, float value) const {
    if (is_bfloat16) {
      static_cast<__nv_bfloat16*>(first)[d] = __float2bfloat16_rn(value);
    } else {
      static_cast<float*>(first)[d] = value;
    }
  }
};

__device__ __forceinline__ OutputRow output_of(const AttentionTask& task, const DeviceSpan& span, int kv_head,
                                               int packed_row) {
  const auto row = static_cast<size_t>(span.first_token + packed_row / task.group);
  const size_t offset =
      (row * task.params.num_heads + head_of(task, kv_head, packed_row)) * task.params.layout.value_dim;
  if (task.out.type == DType::kBFloat16) return {static_cast<__nv_bfloat16*>(task.out.data) + offset, true};
  return {static_cast<float*>(task.out.data) + offset, false};
}

// The keys or values of one head of one sequence. What is the same for all blocks stays in constant memory.
struct CacheArea {
  const AttentionTask& task;
  const CacheRegion& region;
  const std::byte* first;  // in block 0
  const int32_t* blocks;   // of the sequence

  __device__ __forceinline__ CacheArea(const AttentionTask& task, const CacheRegion& region, const DeviceSpan& span,
                                       int kv_head)
      : task(task),
        region(region),
        first(task.params.pool + region.first + kv_head * region.head_bytes),
        blocks(task.spans.blocks + span.first_block) {}
  __device__ __forceinline__ const std::byte* block(int token) const {
    return first + blocks[token >> task.log_block_len] * task.block_bytes;
  }
  __device__ __forceinline__ int slot(int token) const { return token & ((1 << task.log_block_len) - 1); }
  __device__ __forceinline__ const std::byte* quantized(int token) const {
    return block(token) + slot(token) * region.row_bytes;
  }
  // int8 and int4: where the half scale of `token` is; zeros begin after the scales of the block.
  __device__ __forceinline__ const std::byte* scale(int token) const {
    return block(token) + region.quantized_bytes + slot(token) * 2;
  }
  __device__ __forceinline__ const std::byte* zero(int token) const {
    return block(token) + region.quantized_bytes + (2 << task.log_block_len) + slot(token);
  }
};

// Keys [begin, end) that rows from position `first` on may see, and of them those of a split, in units of kKeys.
struct KeyRange {
  int begin;
  int end;
  int first_unit;
  int last_unit;  // one past
};

// Where kHasHalves, and there are as many splits as halves of units, splits are cut between halves, and begin and end
// are the split's own; else splits are whole units.
template <int kKeys, bool kHasHalves = false>
__device__ __forceinline__ KeyRange key_range(const AttentionTask& task, int first, int end, int split) {
  const int window = task.params.window;
  const int begin = window > 0 ? max(0, first - window + 1) : 0;
  const auto cut = [&](int size, int s) {
    const int base = begin / size;
    const int units = divide_up(end, size) - base;
    return base + static_cast<int>(static_cast<int64_t>(units) * s / task.splits);
  };
  if constexpr (kHasHalves) {
    if (task.splits >= (end - begin) / kKeys * 2) {
      constexpr int kHalf = kKeys / 2;
      const int from = cut(kHalf, split) * kHalf;
      const int to = cut(kHalf, split + 1) * kHalf;
      if (from == to) return {begin, end, 0, 0};
      return {max(begin, from), min(end, to), from / kKeys, divide_up(to, kKeys)};
    }
  }
  return {begin, end, cut(kKeys, split), cut(kKeys, split + 1)};
}

// The biases of a head, of distance 0, or null.
__device__ __forceinline__ const float* biases_of(const AttentionParams& params, int head) {
  if (params.distance_biases == nullptr) return nullptr;
  return params.distance_biases + static_cast<size_t>(head) * (2 * params.bias_reach + 1) + params.bias_reach;
}

// Score of a query and a key that is `behind` tokens before it, from q.k.
__device__ __forceinline__ float final_score(const AttentionParams& params, float product, float slope,
                                             const float* biases, int behind) {
  if (params.softcap != 0) {  // tanh(v) = 1 - 2 / (exp(2 v) + 1)
    product = params.softcap - 2.0f * params.softcap / (fast_exp2(product * (2.0f * kLog2E / params.softcap)) + 1.0f);
  }
  if (biases != nullptr) product += biases[-min(max(behind, -params.bias_reach), params.bias_reach)];
  return product - slope * fabsf(static_cast<float>(behind));
}

// Whether a row sees the key `behind` tokens before it, which is `left` tokens before the end of its sight.
__device__ __forceinline__ bool is_seen(const AttentionParams& params, int behind, int left) {
  return left > 0 && (params.window <= 0 || behind < params.window);
}

// exp(score - maximum), where a maximum of -infinity says that there was nothing yet.
__device__ __forceinline__ float weight_below(float score, float maximum) {
  return fast_exp2((score - (maximum == -INFINITY ? 0.0f : maximum)) * kLog2E);
}

// Where a row's weighted sums go: divided by the sum of its weights to the output, or as they are to the results of a
// split. `total` is the sum of exp(score - maximum). One thread of those that write a row has `is_first`.
struct RowResult {
  OutputRow to;
  float factor = 1.0f;
  int dim;

  __device__ __forceinline__ RowResult(const AttentionTask& task, const DeviceSpan& span, int kv_head, int split,
                                       int packed_row, float maximum, float total, bool is_first)
      : dim(task.params.layout.value_dim) {
    if (task.splits > 1) {
      const size_t index =
          split_row(task, blockIdx.z, kv_head, packed_row / task.tile_rows, split, packed_row % task.tile_rows);
      to = {task.split_sums + index * dim, false};
      if (is_first) {
        task.split_stats[index * 2] = maximum;
        task.split_stats[index * 2 + 1] = total;
      }
      return;
    }
    to = output_of(task, span, kv_head, packed_row);
    if (task.params.sinks != nullptr) {
      const float sink = task.params.sinks[head_of(task, kv_head, packed_row)];
      const float larger = fmaxf(maximum, sink);
      factor = weight_below(maximum, larger);
      total = total * factor + weight_below(sink, larger);
    }
    factor /= total;
  }
  __device__ __forceinline__ void write(int d, float sum) const {
    if (d < dim) to.write(d, sum * factor);
  }
};

constexpr int kSplitsOfLane = 2;
constexpr int kMaxSplits = kSplitsOfLane * kWarp;

// Weight of each split of a context in the result of a packed row: result = sum of factor times split_sums.
struct SplitFactors {
  float of[kSplitsOfLane];  // of splits lane + kWarp i; 0 where there is none
};

// A warp works them out together. `first` numbers the row of split 0 (split_row). Splits may be those of other blocks
// of this launch, whose statistics are read from the second-level cache.
__device__ __forceinline__ SplitFactors split_factors(const AttentionTask& task, int kv_head, int packed_row,
                                                      size_t first) {
  const float sink = task.params.sinks != nullptr ? task.params.sinks[head_of(task, kv_head, packed_row)] : -INFINITY;
  float2 stats[kSplitsOfLane];  // a maximum, and the sum of weights below it
  float maximum = sink;
#pragma unroll
  for (int i = 0; i < kSplitsOfLane; ++i) {
    stats[i] = make_float2(-INFINITY, 0);
    const int split = static_cast<int>(threadIdx.x) % kWarp + i * kWarp;
    if (split < task.splits) {
      const size_t index = first + static_cast<size_t>(split) * task.tile_rows;
      stats[i] = __ldcg(reinterpret_cast<const float2*>(task.split_stats + index * 2));
    }
    maximum = fmaxf(maximum, stats[i].x);
  }
  maximum = warp_max(maximum);
  SplitFactors factors;
  float total = 0;
#pragma unroll
  for (int i = 0; i < kSplitsOfLane; ++i) {
    factors.of[i] = weight_below(stats[i].x, maximum);
    total += factors.of[i] * stats[i].y;
  }
  total = warp_sum(total) + weight_below(sink, maximum);
#pragma unroll
  for (float& factor : factors.of) factor /= total;
  return factors;
}

// ---- launchers; attention_bfloat16.cu, attention_int8.cu and attention_int4.cu have those of their kind of cache ----
// `is_split_keys` as attention_tile.cuh says.
template <CacheType kType>
void attention_tiles(cudaStream_t stream, const AttentionTask& task, bool is_split_keys);
// Where has_decode_kernel says so (decode_plan.h); `warps` of a block.
template <CacheType kType>
void decode_cache(cudaStream_t stream, const AttentionTask& task, int warps);
void attention_reference(cudaStream_t stream, const AttentionTask& task);

}  // namespace turbomind::cuda
