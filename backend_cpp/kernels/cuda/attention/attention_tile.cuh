// Attention on tensor cores: a block of four warps computes one tile of packed query rows (attention_task.cuh), tile of
// keys after tile of keys, with a running maximum and sum in the way of FlashAttention-2 (Dao, 2023, arXiv 2307.08691).
//
//   rows split   tile_rows 64; warp w has rows 16 w .. 16 w + 15 and all keys of a tile: for prompts
//   keys split   tile_rows 16; every warp has all rows, and a quarter of each tile's keys; at the end they are added
//   up:
//                for few rows that attention_decode.cuh does not take
//
// Keys and values of the next tile come into shared memory (cp.async, two stages) while one is computed. Queries stay
// in registers or, where those are short, in shared memory in the order a lane wants them. Of quantized caches scales
// and zero points come along, and act on scores and weights:
//   score = scale_k (sum q code - zero sum q)          out = sum (weight scale_v) code - sum (weight scale_v) zero
// Block x is (tile, split), y the key head, z the span. Moves each key and value once for each tile that sees it.
#pragma once

#include "kernels/cuda/attention/attention_task.cuh"
#include "kernels/cuda/attention/cache_operand.cuh"
#include "kernels/cuda/attention/cache_tile.cuh"

namespace turbomind::cuda {

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}

__device__ __forceinline__ float bf16_sum(uint32_t pair) {
  return __uint_as_float(pair << 16) + __uint_as_float(pair & 0xFFFF0000u);
}

// A lane has rows g and g + 8 of its warp's 16, g = lane / 4: index 0 and 1 of what is there twice.
template <CacheType kType, int kDim, bool kSplitKeys>
class TileAttention {
  using Shape = TileShape<kType, kDim, kSplitKeys>;
  using Operand = CacheOperand<kType, Shape::kStride>;
  static constexpr int kSteps = kDim / 16;
  static constexpr int kKeyTiles = Shape::kWarpKeys / 8;
  static constexpr int kValueTiles = kDim / 8;
  static constexpr int kQuerySteps = Shape::kQueryInShared ? 1 : kSteps;

 public:
  __device__ __forceinline__ TileAttention(const AttentionTask& task, const DeviceSpan& span, int tile)
      : task_(task),
        span_(span),
        kv_head_(blockIdx.y),
        lane_(threadIdx.x % kWarp),
        warp_(threadIdx.x / kWarp),
        rows_(span.count * task.group),
        tile_(tile) {}

  __device__ __forceinline__ void run(int split) {
    const int first_token = tile_ * Shape::kRows;
    const int last_row = min(first_token + Shape::kRows, rows_) - 1;
    first_position_ = position_of(task_, span_, first_token);
    const int last_position = position_of(task_, span_, last_row);
    const KeyRange range =
        key_range<Shape::kKeys, Shape::kHasHalves>(task_, first_position_, kv_len_of(task_, span_, last_row), split);
    const CacheArea keys(task_, task_.keys, span_, kv_head_);
    const CacheArea values(task_, task_.values, span_, kv_head_);
    TileBlocks<Shape::kKeys> blocks;
    const auto copy = [&](int unit) {
      if (unit < range.last_unit) {
        std::byte* stage = stage_of(unit - range.first_unit);
        copy_part<Shape>(stage, keys, blocks, unit * Shape::kKeys, range);
        copy_part<Shape>(stage + Shape::kTileBytes + Shape::kScaleBytes, values, blocks, unit * Shape::kKeys, range);
        blocks.read(keys, (unit + 1) * Shape::kKeys, range);
      }
      cp_async_commit();
    };
    blocks.read(keys, range.first_unit * Shape::kKeys, range);
    copy(range.first_unit);
    load_query();
    for (int unit = range.first_unit; unit < range.last_unit; ++unit) {
      copy(unit + 1);
      cp_async_wait<1>();
      __syncthreads();
      std::byte* stage = stage_of(unit - range.first_unit);
      // A prompt's last tile may leave warps without rows.
      if (kSplitKeys || tile_ * Shape::kRows + warp_ * 16 < rows_) {
        compute({stage}, {stage + Shape::kTileBytes + Shape::kScaleBytes}, unit * Shape::kKeys, range, last_position);
      }
      __syncthreads();
    }
    finish(split);
  }

 private:
  __device__ __forceinline__ int packed_row(int i) const {
    return tile_ * Shape::kRows + (kSplitKeys ? 0 : warp_ * 16) + lane_ / 4 + i * 8;
  }
  __device__ __forceinline__ std::byte* stage_of(int number) const {
    return dynamic_shared<std::byte>() + number % 2 * Shape::kStageBytes;
  }
  // Fragments of the query for multiplication `step`, where they are kept in shared memory.
  __device__ __forceinline__ uint4* stored_query(int step) const {
    auto* first = reinterpret_cast<uint4*>(dynamic_shared<std::byte>() + 2 * Shape::kStageBytes);
    return first + ((kSplitKeys ? 0 : warp_) * kSteps + step) * kWarp + lane_;
  }

  __device__ __forceinline__ void load_query() {
    const float* rows[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      rows[i] = packed_row(i) < rows_ ? query_of(task_, span_, kv_head_, packed_row(i)) : nullptr;
    }
    const int dim = task_.params.layout.key_dim;
    float sums[2] = {0, 0};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float* row = rows[w % 2];
        const int low = Operand::key_dim(step, lane_ % 4, w / 2 * 2);
        const int high = Operand::key_dim(step, lane_ % 4, w / 2 * 2 + 1);
        words[w] =
            pack_bf16(row != nullptr && low < dim ? row[low] : 0.0f, row != nullptr && high < dim ? row[high] : 0.0f);
        sums[w % 2] += bf16_sum(words[w]);
      }
      if constexpr (Shape::kQueryInShared) {
        if (!kSplitKeys || warp_ == 0) *stored_query(step) = make_uint4(words[0], words[1], words[2], words[3]);
      } else {
#pragma unroll
        for (int w = 0; w < 4; ++w) query_[step][w] = words[w];
      }
    }
    if constexpr (Shape::kIsQuantized) {
#pragma unroll
      for (int i = 0; i < 2; ++i) query_sum_[i] = group_sum(sums[i]);
    }
  }

  // Sum over the four lanes that share rows.
  __device__ static __forceinline__ float group_sum(float value) {
    value += __shfl_xor_sync(kAllLanes, value, 1);
    return value + __shfl_xor_sync(kAllLanes, value, 2);
  }
  __device__ static __forceinline__ float group_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, 1));
    return fmaxf(value, __shfl_xor_sync(kAllLanes, value, 2));
  }

  // One tile of keys and values, the first of them token `first`.
  __device__ __forceinline__ void compute(const TilePart<Shape>& keys, const TilePart<Shape>& values, int first,
                                          const KeyRange& range, int last_position) {
    const int first_key = kSplitKeys ? warp_ * Shape::kWarpKeys : 0;
    float scores[kKeyTiles][4];
    multiply_keys(keys, first_key, scores);
    const AttentionParams& params = task_.params;
    // Whether every row of the block sees every key of the tile, and q.k is the score.
    const bool is_whole = first + Shape::kKeys - 1 <= first_position_ &&
                          (params.window <= 0 || last_position - first < params.window) && params.softcap == 0 &&
                          params.alibi_slopes == nullptr && params.distance_biases == nullptr;
    const bool is_in_half = !Shape::kHasHalves || (first >= range.begin && first + Shape::kKeys <= range.end);
    if (!is_whole || !is_in_half) apply_rule(first + first_key, range, scores);
    float larger[2] = {maximum_[0], maximum_[1]};
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) {
#pragma unroll
      for (int c = 0; c < 4; ++c) larger[c / 2] = fmaxf(larger[c / 2], scores[tile][c]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      larger[i] = group_max(larger[i]);
      const float shrink = weight_below(maximum_[i], larger[i]);
      maximum_[i] = larger[i];
      total_[i] *= shrink;
      zero_sum_[i] *= shrink;
#pragma unroll
      for (int tile = 0; tile < kValueTiles; ++tile) {
        sums_[tile][2 * i] *= shrink;
        sums_[tile][2 * i + 1] *= shrink;
      }
    }
    multiply_values(values, first_key, scores);
  }

  // Caps, slopes, biases, and -infinity for keys that a row does not see, or of another split; the first is `first`.
  __device__ __forceinline__ void apply_rule(int first, const KeyRange& range, float (&scores)[kKeyTiles][4]) const {
    int positions[2];
    int kv_lens[2];
    float slopes[2];
    const float* biases[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = min(packed_row(i), rows_ - 1);
      const float* all = task_.params.alibi_slopes;
      positions[i] = position_of(task_, span_, row);
      kv_lens[i] = kv_len_of(task_, span_, row);
      slopes[i] = all != nullptr ? all[head_of(task_, kv_head_, row)] : 0.0f;
      biases[i] = biases_of(task_.params, head_of(task_, kv_head_, row));
    }
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int key = first + tile * 8 + lane_ % 4 * 2 + c % 2;
        const int behind = positions[c / 2] - key;
        const float score = final_score(task_.params, scores[tile][c], slopes[c / 2], biases[c / 2], behind);
        const bool is_in_half = !Shape::kHasHalves || (key >= range.begin && key < range.end);
        scores[tile][c] = is_in_half && is_seen(task_.params, behind, kv_lens[c / 2] - key) ? score : -INFINITY;
      }
    }
  }

  __device__ __forceinline__ void multiply_keys(const TilePart<Shape>& keys, int first_key,
                                                float (&scores)[kKeyTiles][4]) {
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) {
#pragma unroll
      for (int c = 0; c < 4; ++c) scores[tile][c] = 0;
    }
#pragma unroll
    for (int unit = 0; unit < kSteps / Operand::kKeyUnit; ++unit) {
      uint32_t query[Operand::kKeyUnit][4];
#pragma unroll
      for (int i = 0; i < Operand::kKeyUnit; ++i) {
        if constexpr (Shape::kQueryInShared) {
          const uint4 words = *stored_query(unit * Operand::kKeyUnit + i);
          query[i][0] = words.x;
          query[i][1] = words.y;
          query[i][2] = words.z;
          query[i][3] = words.w;
        } else {
#pragma unroll
          for (int w = 0; w < 4; ++w) query[i][w] = query_[unit * Operand::kKeyUnit + i][w];
        }
      }
#pragma unroll
      for (int pair = 0; pair < kKeyTiles / 2; ++pair) {
        uint32_t b[Operand::kKeyUnit][2][2];
        Operand::keys(keys.quantized + (first_key + pair * 16) * Shape::kStride, lane_, unit, b);
#pragma unroll
        for (int i = 0; i < Operand::kKeyUnit; ++i) {
          mma_bf16(scores[2 * pair], query[i], b[i][0]);
          mma_bf16(scores[2 * pair + 1], query[i], b[i][1]);
        }
      }
    }
    if constexpr (Shape::kIsQuantized) {
#pragma unroll
      for (int tile = 0; tile < kKeyTiles; ++tile) {
        const int key = first_key + tile * 8 + lane_ % 4 * 2;
        const float2 scale = keys.scales(key);
        const float2 zero = keys.template zeros<Operand::kCentre>(key);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float (&tile_scores)[4] = scores[tile];
          tile_scores[2 * i] = scale.x * fmaf(-zero.x, query_sum_[i], tile_scores[2 * i]);
          tile_scores[2 * i + 1] = scale.y * fmaf(-zero.y, query_sum_[i], tile_scores[2 * i + 1]);
        }
      }
    }
  }

  __device__ __forceinline__ void multiply_values(const TilePart<Shape>& values, int first_key,
                                                  const float (&scores)[kKeyTiles][4]) {
    float offsets[2];  // so that a weight is one multiplication and addition, and 2^x
#pragma unroll
    for (int i = 0; i < 2; ++i) offsets[i] = maximum_[i] == -INFINITY ? 0.0f : -maximum_[i] * kLog2E;
#pragma unroll
    for (int pair = 0; pair < kKeyTiles / 2; ++pair) {
      uint32_t weights[4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int tile = 2 * pair + half;
        const int key = first_key + tile * 8 + lane_ % 4 * 2;
        float2 scale;
        float2 zero;
        if constexpr (Shape::kIsQuantized) {
          scale = values.scales(key);
          zero = values.template zeros<Operand::kCentre>(key);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float low = fast_exp2(fmaf(scores[tile][2 * i], kLog2E, offsets[i]));
          float high = fast_exp2(fmaf(scores[tile][2 * i + 1], kLog2E, offsets[i]));
          total_[i] += low + high;
          if constexpr (Shape::kIsQuantized) {
            low = low == 0 ? 0 : low * scale.x;
            high = high == 0 ? 0 : high * scale.y;
          }
          const uint32_t word = pack_bf16(low, high);
          weights[2 * half + i] = word;
          if constexpr (Shape::kIsQuantized) {
            zero_sum_[i] += __uint_as_float(word << 16) * zero.x + __uint_as_float(word & 0xFFFF0000u) * zero.y;
          }
        }
      }
#pragma unroll
      for (int unit = 0; unit < kValueTiles / Operand::kValueUnit; ++unit) {
        uint32_t b[Operand::kValueUnit][2];
        Operand::values(values.quantized + (first_key + pair * 16) * Shape::kStride, lane_, unit, b);
#pragma unroll
        for (int i = 0; i < Operand::kValueUnit; ++i) mma_bf16(sums_[unit * Operand::kValueUnit + i], weights, b[i]);
      }
    }
  }

  __device__ __forceinline__ void finish(int split) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      total_[i] = group_sum(total_[i]);
      if constexpr (Shape::kIsQuantized) zero_sum_[i] = group_sum(zero_sum_[i]);
    }
    if constexpr (kSplitKeys) {
      finish_across_warps(split);
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (packed_row(i) >= rows_) continue;
        const RowResult result(task_, span_, kv_head_, split, packed_row(i), maximum_[i], total_[i], lane_ % 4 == 0);
#pragma unroll
        for (int tile = 0; tile < kValueTiles; ++tile) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            result.write(Operand::value_dim(tile, lane_ % 4 * 2 + c), sums_[tile][2 * i + c] - zero_sum_[i]);
          }
        }
      }
    }
  }

  // Adds up the four warps' sums of the same rows, in their order.
  __device__ __forceinline__ void finish_across_warps(int split) {
    cp_async_wait<0>();
    __syncthreads();                                            // nothing is read from the stages any more
    auto* sums = dynamic_shared<float>();                       // [warps, rows, kDim]
    float* stats = sums + Shape::kWarps * Shape::kRows * kDim;  // [warps, rows, 2]
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = warp_ * Shape::kRows + lane_ / 4 + i * 8;
      if (lane_ % 4 == 0) {
        stats[row * 2] = maximum_[i];
        stats[row * 2 + 1] = total_[i];
      }
#pragma unroll
      for (int tile = 0; tile < kValueTiles; ++tile) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          sums[row * kDim + Operand::value_dim(tile, lane_ % 4 * 2 + c)] = sums_[tile][2 * i + c] - zero_sum_[i];
        }
      }
    }
    __syncthreads();
    for (int r = warp_; r < Shape::kRows; r += Shape::kWarps) {
      const int row = tile_ * Shape::kRows + r;
      if (row >= rows_) break;
      float maximum = -INFINITY;
      float total = 0;
      float factors[Shape::kWarps];
#pragma unroll
      for (int w = 0; w < Shape::kWarps; ++w) maximum = fmaxf(maximum, stats[(w * Shape::kRows + r) * 2]);
#pragma unroll
      for (int w = 0; w < Shape::kWarps; ++w) {
        factors[w] = weight_below(stats[(w * Shape::kRows + r) * 2], maximum);
        total += factors[w] * stats[(w * Shape::kRows + r) * 2 + 1];
      }
      const RowResult result(task_, span_, kv_head_, split, row, maximum, total, lane_ == 0);
      for (int d = lane_; d < result.dim; d += kWarp) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < Shape::kWarps; ++w) sum += factors[w] * sums[(w * Shape::kRows + r) * kDim + d];
        result.write(d, sum);
      }
    }
  }

  const AttentionTask& task_;
  const DeviceSpan& span_;
  const int kv_head_;
  const int lane_;
  const int warp_;
  const int rows_;
  const int tile_;
  int first_position_ = 0;
  uint32_t query_[kQuerySteps][4] = {};
  float query_sum_[2] = {0, 0};
  float maximum_[2] = {-INFINITY, -INFINITY};
  float total_[2] = {0, 0};     // of the weights
  float zero_sum_[2] = {0, 0};  // of the weights times zero points
  float sums_[kValueTiles][4] = {};
};

template <CacheType kType, int kDim, bool kSplitKeys>
__global__ void __launch_bounds__(TileShape<kType, kDim, kSplitKeys>::kThreads,
                                  TileShape<kType, kDim, kSplitKeys>::kBlocks) tile_kernel(AttentionTask task) {
  await_previous();
  const DeviceSpan span = task.spans.spans[blockIdx.z];
  const int tile = task.tiles - 1 - static_cast<int>(blockIdx.x) / task.splits;  // the longest contexts first
  if (tile * task.tile_rows >= span.count * task.group) return;
  TileAttention<kType, kDim, kSplitKeys> attention(task, span, tile);
  attention.run(static_cast<int>(blockIdx.x) % task.splits);
}

template <CacheType kType, int kDim>
void launch_tiles(cudaStream_t stream, const AttentionTask& task, bool is_split_keys) {
  const dim3 grid(static_cast<unsigned>(task.tiles) * task.splits, task.params.layout.num_kv_heads,
                  task.spans.span_count);
  if (is_split_keys) {
    using Shape = TileShape<kType, kDim, true>;
    launch(tile_kernel<kType, kDim, true>, grid, dim3(Shape::kThreads), Shape::kSharedBytes, stream, task);
  } else {
    using Shape = TileShape<kType, kDim, false>;
    launch(tile_kernel<kType, kDim, false>, grid, dim3(Shape::kThreads), Shape::kSharedBytes, stream, task);
  }
}

template <CacheType kType>
void attention_tiles(cudaStream_t stream, const AttentionTask& task, bool is_split_keys) {
  with_tile_dim<kType>(task.params.layout, [&](auto dim) { launch_tiles<kType, dim>(stream, task, is_split_keys); });
}

}  // namespace turbomind::cuda
