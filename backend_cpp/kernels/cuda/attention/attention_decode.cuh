// Attention of few query rows (decoding): warps stream the cache through registers. A block computes all query rows of
// a key head of a span over one split of the context. Its warps take turns with tiles of kTokens tokens, each by
// itself: nothing in the loop waits for another warp, and no key or value is in shared memory. While a tile's keys are
// multiplied its values are on their way, and then the next tile's keys: what is in flight is in registers.
//
// Products are the other way round than in attention_tile.cuh, so that few query rows waste little of a multiplication:
//   scores^T [tokens, rows] = k q^T        out^T [dims, rows] = v^T w^T
// The result of the first, transposed in registers (transpose_8x8), is an operand of the second. A lane g = lane / 4,
// t = lane % 4 has scores of tokens 2 M g .. 2 M g + 2 M - 1 of a tile of 16 M (row g + 8 h of m-tile m is token 2 m +
// h of them), and values of tokens 4 M t .. 4 M t + 4 M - 1.
//
// The running reference of a row is no exact maximum: it moves only when a weight would exceed 2^kSlack, which a warp
// asks by one vote. Weights of int8 and int4 values carry the scale of their token, and are below 2^kSlack with it, so
// that float16 holds them; so are queries, by a power of two for all. With codes coming as offset + code
// (register_operand.cuh)
//   score = scale_k (sum q (offset + code) - sum q offset - zero sum q)
//   out = sum (weight scale_v) (offset + code) - sum (weight scale_v) (offset + zero)
// whose last sum is a product with rows of offset + zero, rounded as the others are.
// Block x is the split, y the key head, z the span. Each key and value is read once. On an H100 that takes 0.93 to 1.0
// of the copy bandwidth from 32 sequences of 2,000 tokens on, int4 0.8 to 0.97 (docs/internals/cuda.md); what remains
// is some 5 microseconds of latency.
#pragma once

#include "kernels/cuda/attention/cache_stream.cuh"
#include "kernels/cuda/attention/decode_splits.cuh"
#include "kernels/cuda/reduce.cuh"

namespace turbomind::cuda {

template <class Shape>
class DecodeAttention {
  using Operand = typename CacheStream<Shape>::Operand;
  static constexpr bool kIsQuantized = Operand::kIsQuantized;
  static constexpr int kM = Shape::kTiles;
  static constexpr int kQueryTiles = Shape::kQueryTiles;
  static constexpr int kSteps = Shape::kDim / 16;
  static constexpr int kThreadKeys = CacheStream<Shape>::kThreadKeys;
  static constexpr int kThreadValues = CacheStream<Shape>::kThreadValues;
  static constexpr float kSlack = 8;         // of weights, as a power of two
  static constexpr float kNothing = -1e30f;  // a reference before any score; finite, so that differences are numbers
  static constexpr float kMinLog = -40;      // of a scale: float16 has none that is smaller but 0

 public:
  __device__ __forceinline__ DecodeAttention(const AttentionTask& task, const DeviceSpan& span, int split)
      : task_(task),
        span_(span),
        kv_head_(blockIdx.y),
        lane_(threadIdx.x % kWarp),
        warp_(threadIdx.x / kWarp),
        warps_(blockDim.x / kWarp),
        rows_(span.count * task.group),
        range_(key_range<Shape::kTokens>(task, span.first_position, kv_len_of(task, span, rows_ - 1), split)),
        cache_(task, span, kv_head_, range_) {
#pragma unroll
    for (auto& references : reference_) {
#pragma unroll
      for (float& reference : references) reference = kNothing;
    }
  }

  __device__ __forceinline__ void run(int split) {
    const int first_position = span_.first_position;
    const int window = task_.params.window;
    whole_begin_ = window > 0 ? position_of(task_, span_, rows_ - 1) - window + 1 : 0;
    whole_end_ = first_position + 1;
#pragma unroll
    for (int q = 0; q < kQueryTiles; ++q) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = min(q * 8 + lane_ % 4 * 2 + half, rows_ - 1);
        first_seen_[q][half] = window > 0 ? position_of(task_, span_, row) - window + 1 : 0;
        last_seen_[q][half] = kv_len_of(task_, span_, row);
      }
    }
    int unit = range_.first_unit + warp_;
    cache_.read_blocks(unit);
    const bool has_any = unit < range_.last_unit;
    if (has_any) {
      cache_.load_keys(unit);
      cache_.load_values(unit);
      cache_.load_value_scales(unit);
      cache_.read_blocks(unit + warps_);
    }
    load_query();
    while (unit < range_.last_unit) {
      const int next = unit + warps_;
      const bool has_next = next < range_.last_unit;
      float scores[kM][kQueryTiles][4];
      multiply_keys(scores);
      if (has_next) cache_.load_keys(next);
      weigh(unit * Shape::kTokens, scores);
      if (has_next) cache_.load_value_scales(next);
      multiply_values(scores);
      if (has_next) cache_.load_values(next);
      cache_.read_blocks(next + warps_);
      unit = next;
    }
    finish(split);
  }

 private:
  // Brings the queries into the order of fragments, by way of shared memory.
  __device__ __forceinline__ void load_query() {
    constexpr int kMax = Shape::kRows * Shape::kDim / (kMinDecodeWarps * kWarp);  // elements of a thread
    auto* words = dynamic_shared<uint32_t>();
    float elements[kMax];
    float largest = 0;
#pragma unroll
    for (int i = 0; i < kMax; ++i) {
      const int index = i * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
      const int row = index / Shape::kDim;
      elements[i] = row < rows_ ? query_of(task_, span_, kv_head_, row)[index % Shape::kDim] : 0.0f;
      largest = fmaxf(largest, fabsf(elements[i]));
    }
    float factor = 1.0f;
    if constexpr (kIsQuantized) {
      float* of_warps = reinterpret_cast<float*>(words + Shape::kQueryWords);
      largest = warp_max(largest);
      if (lane_ == 0) of_warps[warp_] = largest;
      __syncthreads();
      for (int w = 0; w < warps_; ++w) largest = fmaxf(largest, of_warps[w]);
      // 2^-e, with 2^e the largest's power of two; from the bits of its exponent.
      const int exponent = min(max(static_cast<int>(__float_as_uint(largest) >> 23), 1), 253);
      factor = __uint_as_float(static_cast<uint32_t>(254 - exponent) << 23);
      query_factor_ = __uint_as_float(static_cast<uint32_t>(exponent) << 23);
    }
    auto* halves = reinterpret_cast<uint16_t*>(words);
#pragma unroll
    for (int i = 0; i < kMax; ++i) {
      const int index = i * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
      const int row = index / Shape::kDim;
      const auto slot = Operand::key_slot(index % Shape::kDim);
      const int word = (row / 8 * Operand::kRowPairs + slot.pair) * kWarp + row % 8 * 4 + slot.quad_lane;
      if (row < Shape::kRows) {
        halves[word * 2 + slot.element] = static_cast<uint16_t>(Operand::pack(elements[i] * factor, 0.0f));
      }
    }
    __syncthreads();
#pragma unroll
    for (int q = 0; q < kQueryTiles; ++q) {
#pragma unroll
      for (int p = 0; p < Operand::kRowPairs; ++p) {
        query_[q][p / 2][p % 2] = words[(q * Operand::kRowPairs + p) * kWarp + lane_];
      }
    }
    if constexpr (kIsQuantized) {
      constexpr uint32_t kOne = Operand::two_of(1);
      constexpr uint32_t kEven = Operand::two_of(Operand::offset(0));
      constexpr uint32_t kOdd = Operand::two_of(Operand::offset(1));
#pragma unroll
      for (int q = 0; q < kQueryTiles; ++q) {
        float sums[4] = {0, 0, 0, 0};
        float offsets[4] = {0, 0, 0, 0};
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          const uint32_t ones[4] = {kOne, kOne, kOne, kOne};
          const uint32_t added[4] = {kEven, kEven, kOdd, kOdd};
          Operand::multiply(sums, ones, query_[q][step]);
          Operand::multiply(offsets, added, query_[q][step]);
        }
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          query_sum_[q][c] = sums[c];
          query_offset_[q][c] = offsets[c];
        }
      }
    }
  }

  // Scores times log2(e), so that weights are powers of two, but for what apply_rule has to do with them before.
  __device__ __forceinline__ void multiply_keys(float (&scores)[kM][kQueryTiles][4]) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      float scale[2] = {1, 1};
      float zero[2] = {0, 0};
      if constexpr (kIsQuantized) {
        const float2 both = upcast(cache_.key_scales[m]);
        scale[0] = both.x * query_factor_;
        scale[1] = both.y * query_factor_;
        zero[0] = static_cast<float>(cache_.key_zeros >> 16 * m & 255);
        zero[1] = static_cast<float>(cache_.key_zeros >> (16 * m + 8) & 255);
      }
#pragma unroll
      for (int q = 0; q < kQueryTiles; ++q) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          scores[m][q][c] = kIsQuantized ? fmaf(-zero[c / 2], query_sum_[q][c % 2], -query_offset_[q][c % 2]) : 0.0f;
        }
      }
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t a[4];
        a[0] = Operand::key_pair(cache_.keys[2 * m], 2 * step);
        a[1] = Operand::key_pair(cache_.keys[2 * m + 1], 2 * step);
        a[2] = Operand::key_pair(cache_.keys[2 * m], 2 * step + 1);
        a[3] = Operand::key_pair(cache_.keys[2 * m + 1], 2 * step + 1);
#pragma unroll
        for (int q = 0; q < kQueryTiles; ++q) Operand::multiply(scores[m][q], a, query_[q][step]);
      }
      if constexpr (kIsQuantized) {
#pragma unroll
        for (int q = 0; q < kQueryTiles; ++q) {
#pragma unroll
          for (int c = 0; c < 4; ++c) scores[m][q][c] *= scale[c / 2];
        }
      }
    }
  }

  __device__ static __forceinline__ float2 upcast(uint32_t halves) {
    __half2 pair;
    memcpy(&pair, &halves, sizeof(pair));
    return __half22float2(pair);
  }

  // -infinity for keys that a row does not see; what is not of the range may be anything, and becomes numbers that 0
  // can be multiplied by.
  __device__ __forceinline__ void hide(int first, float (&scores)[kM][kQueryTiles][4]) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int q = 0; q < kQueryTiles; ++q) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int key = first + lane_ / 4 * kThreadKeys + 2 * m + c / 2;
          if (key < first_seen_[q][c % 2] || key >= last_seen_[q][c % 2]) scores[m][q][c] = -INFINITY;
        }
      }
    }
    if constexpr (kIsQuantized) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        const int key = first + lane_ / 4 * kThreadKeys + 2 * m;
        if (key < range_.begin || key >= range_.end) cache_.value_scales[m] &= 0xFFFF0000u;
        if (key + 1 < range_.begin || key + 1 >= range_.end) cache_.value_scales[m] &= 0x0000FFFFu;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kThreadValues; ++i) {
        const int token = first + lane_ % 4 * kThreadValues + i;
        if (token >= range_.begin && token < range_.end) continue;
#pragma unroll
        for (uint32_t& word : cache_.values[i]) word = 0;
      }
    }
  }

  // Scores become weights, times the scale of the token's values.
  __device__ __forceinline__ void weigh(int first, float (&scores)[kM][kQueryTiles][4]) {
    if (first < whole_begin_ || first + Shape::kTokens > whole_end_) hide(first, scores);
    float scale[kM][2];
    float log_scale[kM][2];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      if constexpr (kIsQuantized) {
        const float2 both = upcast(cache_.value_scales[m]);
        scale[m][0] = both.x;
        scale[m][1] = both.y;
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        log_scale[m][h] = kIsQuantized ? fmaxf(fast_log2(scale[m][h]), kMinLog) : 0.0f;
      }
    }
    bool is_above = false;
    float largest[kQueryTiles][2];
#pragma unroll
    for (int q = 0; q < kQueryTiles; ++q) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& row_max = largest[q][half];
        row_max = -INFINITY;
#pragma unroll
        for (int m = 0; m < kM; ++m) {
#pragma unroll
          for (int h = 0; h < 2; ++h)
            row_max = fmaxf(row_max, fmaf(scores[m][q][2 * h + half], kLog2E, log_scale[m][h]));
        }
        is_above = is_above || row_max > reference_[q][half] + kSlack;
      }
    }
    if (__any_sync(kAllLanes, is_above ? 1 : 0) != 0) raise(largest);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int q = 0; q < kQueryTiles; ++q) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          float& weight = scores[m][q][c];
          weight = fast_exp2(fmaf(weight, kLog2E, -reference_[q][c % 2]));
          total_[q][c % 2] += weight;
          if constexpr (kIsQuantized) weight *= scale[m][c / 2];
        }
      }
    }
  }

  // References become the largest so far, for all lanes that have the rows.
  __device__ __forceinline__ void raise(const float (&largest)[kQueryTiles][2]) {
#pragma unroll
    for (int q = 0; q < kQueryTiles; ++q) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float row_max = largest[q][half];
#pragma unroll
        for (int step = 4; step < kWarp; step *= 2) row_max = fmaxf(row_max, __shfl_xor_sync(kAllLanes, row_max, step));
        row_max = fmaxf(row_max, reference_[q][half]);
        const float shrink = fast_exp2(reference_[q][half] - row_max);
        reference_[q][half] = row_max;
        total_[q][half] *= shrink;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          zero_sums_[q][2 * h + half] *= shrink;
#pragma unroll
          for (int tile = 0; tile < kSteps; ++tile) sums_[q][tile][2 * h + half] *= shrink;
        }
      }
    }
  }

  __device__ __forceinline__ void multiply_values(const float (&weights)[kM][kQueryTiles][4]) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      uint32_t b[kQueryTiles][2];
#pragma unroll
      for (int q = 0; q < kQueryTiles; ++q) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          b[q][h] = transpose_8x8(Operand::pack(weights[m][q][2 * h], weights[m][q][2 * h + 1]));
        }
      }
      // Columns 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of the tile are tokens 2 m, 2 m + 2 M, 2 m + 1, 2 m + 1 + 2 M of a
      // lane's.
      const auto& v0 = cache_.values[2 * m];
      const auto& v1 = cache_.values[2 * m + 2 * kM];
      const auto& v2 = cache_.values[2 * m + 1];
      const auto& v3 = cache_.values[2 * m + 1 + 2 * kM];
#pragma unroll
      for (int tile = 0; tile < kSteps; ++tile) {
        uint32_t a[4];
        a[0] = Operand::value_pair(v0, v1, 2 * tile);
        a[1] = Operand::value_pair(v0, v1, 2 * tile + 1);
        a[2] = Operand::value_pair(v2, v3, 2 * tile);
        a[3] = Operand::value_pair(v2, v3, 2 * tile + 1);
#pragma unroll
        for (int q = 0; q < kQueryTiles; ++q) Operand::multiply(sums_[q][tile], a, b[q]);
      }
      if constexpr (kIsQuantized) {
        uint32_t a[4];
        if constexpr (kM == 1) {  // bytes 0 and 2, 1 and 3
          a[0] = __byte_perm(cache_.value_zeros[0], 0x64646464u, 0x4240);
          a[2] = __byte_perm(cache_.value_zeros[0], 0x64646464u, 0x4341);
        } else {
          a[0] = Operand::zero_pair(cache_.value_zeros[0], cache_.value_zeros[kM - 1], 2 * m);
          a[2] = Operand::zero_pair(cache_.value_zeros[0], cache_.value_zeros[kM - 1], 2 * m + 1);
        }
        a[1] = Operand::kBits == 4 ? less_960(a[0]) : a[0];
        a[3] = Operand::kBits == 4 ? less_960(a[2]) : a[2];
#pragma unroll
        for (int q = 0; q < kQueryTiles; ++q) Operand::multiply(zero_sums_[q], a, b[q]);
      }
    }
  }

  // From 1024 + a zero point to 64 + it.
  __device__ static __forceinline__ uint32_t less_960(uint32_t halves) {
    __half2 pair;
    memcpy(&pair, &halves, sizeof(pair));
    pair = __hsub2(pair, __floats2half2_rn(960.0f, 960.0f));
    memcpy(&halves, &pair, sizeof(pair));
    return halves;
  }

  // Adds up the warps' sums, in their order.
  __device__ __forceinline__ void finish(int split) {
    auto* sums = dynamic_shared<float>();                             // [warps, rows, kSumStride]
    float* stats = sums + warps_ * Shape::kRows * Shape::kSumStride;  // [warps, rows, 2]
    __syncthreads();                                                  // queries are not read any more
#pragma unroll
    for (int q = 0; q < kQueryTiles; ++q) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float total = total_[q][half];
#pragma unroll
        for (int step = 4; step < kWarp; step *= 2) total += __shfl_xor_sync(kAllLanes, total, step);
        const int row = warp_ * Shape::kRows + q * 8 + lane_ % 4 * 2 + half;
        if (lane_ / 4 == 0) {
          stats[row * 2] = reference_[q][half];
          stats[row * 2 + 1] = total;
        }
#pragma unroll
        for (int tile = 0; tile < kSteps; ++tile) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            sums[row * Shape::kSumStride + Operand::value_dim(2 * tile + h, lane_ / 4)] =
                sums_[q][tile][2 * h + half] - zero_sums_[q][2 * h + half];
          }
        }
      }
    }
    __syncthreads();
    for (int row = warp_; row < rows_; row += warps_) {
      float maximum = kNothing;
      for (int w = 0; w < warps_; ++w) maximum = fmaxf(maximum, stats[(w * Shape::kRows + row) * 2]);
      constexpr int kEach = Shape::kDim / kWarp;
      float total = 0;
      float row_sums[kEach] = {};
      for (int w = 0; w < warps_; ++w) {
        const int from = w * Shape::kRows + row;
        const float factor = fast_exp2(stats[from * 2] - maximum);
        total += factor * stats[from * 2 + 1];
#pragma unroll
        for (int i = 0; i < kEach; ++i) row_sums[i] += factor * sums[from * Shape::kSumStride + i * kWarp + lane_];
      }
      const RowResult result(task_, span_, kv_head_, split, row, maximum * (1.0f / kLog2E), total, lane_ == 0);
#pragma unroll
      for (int i = 0; i < kEach; ++i) result.write(i * kWarp + lane_, row_sums[i]);
    }
  }

  const AttentionTask& task_;
  const DeviceSpan& span_;
  const int kv_head_;
  const int lane_;
  const int warp_;
  const int warps_;
  const int rows_;
  int whole_begin_ = 0;  // all rows see the keys from here ...
  int whole_end_ = 0;    // ... to here
  int first_seen_[kQueryTiles][2];
  int last_seen_[kQueryTiles][2];  // one past
  const KeyRange range_;
  CacheStream<Shape> cache_;
  uint32_t query_[kQueryTiles][kSteps][2] = {};
  float query_factor_ = 1;
  float query_sum_[kQueryTiles][2] = {};
  float query_offset_[kQueryTiles][2] = {};
  float reference_[kQueryTiles][2];
  float total_[kQueryTiles][2] = {};
  float zero_sums_[kQueryTiles][4] = {};
  float sums_[kQueryTiles][kSteps][4] = {};
};

template <class Shape>
__global__ void __launch_bounds__(Shape::kWarps* kWarp) decode_kernel(AttentionTask task) {
  await_previous();
  const DeviceSpan span = task.spans.spans[blockIdx.z];
  if (span.count == 0) return;
  DecodeAttention<Shape> attention(task, span, blockIdx.x);
  attention.run(blockIdx.x);
  if (task.splits > 1 && task.counters != nullptr && is_last_split(task)) add_splits<Shape>(task, span);
}

template <class Shape>
void launch_decode(cudaStream_t stream, const AttentionTask& task, int warps) {
  launch(decode_kernel<Shape>, dim3(task.splits, task.params.layout.num_kv_heads, task.spans.span_count),
         dim3(warps * kWarp), Shape::shared_bytes(warps), stream, task);
}

template <CacheType kType>
void decode_cache(cudaStream_t stream, const AttentionTask& task, int warps) {
  const bool is_narrow = task.spans.max_tokens * task.group <= 8;
  if (task.params.layout.key_dim == 64) {
    is_narrow ? launch_decode<DecodeShape<kType, 64, 1>>(stream, task, warps)
              : launch_decode<DecodeShape<kType, 64, 2>>(stream, task, warps);
  } else {
    is_narrow ? launch_decode<DecodeShape<kType, 128, 1>>(stream, task, warps)
              : launch_decode<DecodeShape<kType, 128, 2>>(stream, task, warps);
  }
}

}  // namespace turbomind::cuda
