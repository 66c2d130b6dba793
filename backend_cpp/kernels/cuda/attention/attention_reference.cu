// Attention without tensor cores, for any kind of cache and any dimension: a float32 cache, whose results are
// float32's, and shapes the tile kernels have no version for. A warp computes one query head of one row: for 32 keys at
// a time a lane computes the score of one key, then sums the values of some dimensions.
#include "kernels/cuda/attention/attention_task.cuh"
#include "kernels/cuda/reduce.cuh"

namespace turbomind::cuda {

namespace {

constexpr int kWarps = 4;
// Blocks of a multiprocessor that registers are kept for; 0: the compiler's choice, which spills for short heads of
// int4.
template <CacheType kType, int kSteps>
constexpr int kBlocks = kType == CacheType::kInt4 && kSteps == 4 ? 8 : 0;

// Element d of a row of codes.
template <CacheType kType>
__device__ __forceinline__ float value_at(const std::byte* quantized, int d) {
  if constexpr (kType == CacheType::kFloat32) return reinterpret_cast<const float*>(quantized)[d];
  if constexpr (kType == CacheType::kBFloat16) {
    return __uint_as_float(static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(quantized)[d]) << 16);
  }
  if constexpr (kType == CacheType::kInt8) return static_cast<float>(static_cast<uint8_t>(quantized[d]));
  if constexpr (kType == CacheType::kInt4) {
    return static_cast<float>(static_cast<uint32_t>(quantized[d / 2]) >> (d % 2 * 4) & 15u);
  }
}

// Value of a token's code: scale (code - zero).
struct Rounding {
  float scale;
  float zero;
};

template <CacheType kType>
__device__ __forceinline__ Rounding rounding_of(const CacheArea& area, int token) {
  if constexpr (kType == CacheType::kFloat32 || kType == CacheType::kBFloat16) return {1.0f, 0.0f};
  return {__half2float(*reinterpret_cast<const __half*>(area.scale(token))),
          static_cast<float>(static_cast<uint8_t>(*area.zero(token)))};
}

// Block x is (packed rows, split), y the key head, z the span. kSteps: value dimensions of a lane.
template <CacheType kType, int kSteps>
__global__ void __launch_bounds__(kWarps* kWarp, kBlocks<kType, kSteps>) reference_kernel(AttentionTask task) {
  await_previous();
  const AttentionParams& params = task.params;
  const int key_dim = params.layout.key_dim;
  const int value_dim = params.layout.value_dim;
  const DeviceSpan span = task.spans.spans[blockIdx.z];
  const int kv_head = blockIdx.y;
  const int split = blockIdx.x % task.splits;
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int row = blockIdx.x / task.splits * kWarps + warp;
  if (row >= span.count * task.group) return;  // nothing here waits for other warps

  float2* shares = dynamic_shared<float2>() + warp * kWarp;  // of each key: weight times scale, and zero
  float* query = dynamic_shared<float>() + kWarps * kWarp * 2 + warp * key_dim;
  const float* given = query_of(task, span, kv_head, row);
  for (int d = lane; d < key_dim; d += kWarp) query[d] = given[d];
  __syncwarp();

  const CacheArea keys(task, task.keys, span, kv_head);
  const CacheArea values(task, task.values, span, kv_head);
  const int position = position_of(task, span, row);
  const int head = head_of(task, kv_head, row);
  const float slope = params.alibi_slopes != nullptr ? params.alibi_slopes[head] : 0.0f;
  const float* biases = biases_of(params, head);
  const KeyRange range = key_range<kWarp>(task, position, kv_len_of(task, span, row), split);

  float maximum = -INFINITY;
  float total = 0;
  float sums[kSteps] = {};
  for (int unit = range.first_unit; unit < range.last_unit; ++unit) {
    const int token = unit * kWarp + lane;
    float score = -INFINITY;
    if (token >= range.begin && token < range.end) {
      const std::byte* quantized = keys.quantized(token);
      const Rounding rounding = rounding_of<kType>(keys, token);
      float product = 0;
      for (int d = 0; d < key_dim; ++d) product += query[d] * (value_at<kType>(quantized, d) - rounding.zero);
      score = final_score(params, product * rounding.scale, slope, biases, position - token);
    }
    const float larger = fmaxf(maximum, warp_max(score));
    const float shrink = weight_below(maximum, larger);
    const float weight = weight_below(score, larger);
    maximum = larger;
    total = total * shrink + weight;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) sums[step] *= shrink;
    if (token >= range.begin && token < range.end) {
      const Rounding rounding = rounding_of<kType>(values, token);
      shares[lane] = make_float2(weight * rounding.scale, rounding.zero);
    }
    __syncwarp();
    const int first = max(range.begin, unit * kWarp);
    const int end = min(range.end, unit * kWarp + kWarp);
    for (int other = first; other < end; ++other) {
      const std::byte* quantized = values.quantized(other);
      const float2 share = shares[other % kWarp];
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int d = step * kWarp + lane;
        if (d < value_dim) sums[step] += share.x * (value_at<kType>(quantized, d) - share.y);
      }
    }
    __syncwarp();  // the next keys' shares come to the same place
  }
  total = warp_sum(total);

  const RowResult result(task, span, kv_head, split, row, maximum, total, lane == 0);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) result.write(step * kWarp + lane, sums[step]);
}

template <CacheType kType>
void launch_reference(cudaStream_t stream, const AttentionTask& task) {
  const CacheLayout& layout = task.params.layout;
  const int row_blocks = divide_up(task.spans.max_tokens * task.group, kWarps);
  launch(layout.value_dim <= 128 ? reference_kernel<kType, 4> : reference_kernel<kType, 32>,
         dim3(static_cast<unsigned>(row_blocks) * task.splits, layout.num_kv_heads, task.spans.span_count),
         dim3(kWarps * kWarp), static_cast<size_t>(kWarps) * (kWarp * 2 + layout.key_dim) * sizeof(float), stream,
         task);
}

}  // namespace

void attention_reference(cudaStream_t stream, const AttentionTask& task) {
  switch (task.params.layout.type) {
    case CacheType::kFloat32:
      return launch_reference<CacheType::kFloat32>(stream, task);
    case CacheType::kBFloat16:
      return launch_reference<CacheType::kBFloat16>(stream, task);
    case CacheType::kInt8:
      return launch_reference<CacheType::kInt8>(stream, task);
    case CacheType::kInt4:
      return launch_reference<CacheType::kInt4>(stream, task);
  }
}

}  // namespace turbomind::cuda
