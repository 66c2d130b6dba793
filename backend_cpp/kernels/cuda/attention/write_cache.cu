#include "kernels/cuda/attention/paged_attention.h"
#include "kernels/cuda/elementwise/rotate.cuh"
#include "kernels/cuda/reduce.cuh"

namespace turbomind::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int kMaxRounded = 256;  // dimensions of a query

struct WriteTask {
  AttentionParams params;
  DeviceSpans spans;
  HeadsView k;
  HeadsView v;
  // Rotated part; no heads and no units: nothing.
  HeadsView q;
  const float* factors;
  RopeTable table;
  int query_units;
  int key_units;
  int written_heads;  // of keys, and of values
  bool rounds_queries;
};

template <class T>
__device__ __forceinline__ T element(float value);
template <>
__device__ __forceinline__ float element<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ __nv_bfloat16 element<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

template <class T>
__device__ __forceinline__ void write_unquantized(std::byte* head, int slot, int dim, int lane, const float* x) {
  auto* elements = reinterpret_cast<T*>(head) + static_cast<size_t>(slot) * dim;
  for (int d = lane; d < dim; d += kWarp) elements[d] = element<T>(x[d]);
}

// The nearest code; NaN becomes 0.
__device__ __forceinline__ unsigned quantize(float value, float largest) {
  return value > 0 ? static_cast<unsigned>(fminf(rintf(value), largest)) : 0u;
}

// Rounds a head's values as kernels/cpu/write_cache.cc does, bit for bit: so no product and sum may be fused.
template <int kBits>
__device__ __forceinline__ void write_quantized(const CacheLayout& layout, std::byte* head, int slot, int dim, int lane,
                                                const float* x) {
  float low = 0;
  float high = 0;
  float probe = 0;  // NaN and infinity must not vanish: they make the scale not a number
  for (int d = lane; d < dim; d += kWarp) {
    low = fminf(low, x[d]);
    high = fmaxf(high, x[d]);
    probe += x[d] * 0.0f;
  }
  low = -warp_max(-low);
  high = warp_max(high);
  probe = warp_sum(probe);
  constexpr float kLargest = kBits == 8 ? 255.0f : 15.0f;
  const __half scale = __float2half_rn(__fadd_rn(__fdiv_rn(__fsub_rn(high, low), kLargest), probe));
  const float step = __half2float(scale);
  const float inverse = step > 0 ? __fdiv_rn(1.0f, step) : 0.0f;
  const unsigned zero = quantize(__fmul_rn(-low, inverse), kLargest);
  const auto quantize_at = [&](int d) {
    return quantize(__fadd_rn(__fmul_rn(x[d], inverse), static_cast<float>(zero)), kLargest);
  };
  auto* quantized = reinterpret_cast<uint8_t*>(head) + static_cast<size_t>(slot) * dim * kBits / 8;
  for (int b = lane; b < dim * kBits / 8; b += kWarp) {
    quantized[b] = static_cast<uint8_t>(kBits == 8 ? quantize_at(b) : quantize_at(2 * b) | quantize_at(2 * b + 1) << 4);
  }
  if (lane == 0) {
    auto* scales = reinterpret_cast<__half*>(head + layout.quantized_bytes(dim));
    scales[slot] = scale;
    reinterpret_cast<uint8_t*>(scales + layout.block_len)[slot] = static_cast<uint8_t>(zero);
  }
}

// A warp rotates the query, or writes the key or the value, of one head of one row; block x is (row of the span,
// heads), y the span.
__global__ void __launch_bounds__(kWarps* kWarp) write_kernel(WriteTask task, int head_blocks) {
  await_previous();
  const CacheLayout& layout = task.params.layout;
  const DeviceSpan span = task.spans.spans[blockIdx.y];
  const int row = blockIdx.x / head_blocks;
  const int unit = blockIdx.x % head_blocks * kWarps + threadIdx.x / kWarp;
  const int written = unit - task.q.heads;
  if (row >= span.count || written >= 2 * task.written_heads) return;
  const int lane = threadIdx.x % kWarp;
  const auto step_row = static_cast<size_t>(span.first_token + row);
  if (written < 0) {
    float* query = task.q.head(step_row, unit);
    __shared__ float kept[kWarps][kMaxRounded];
    float* rotated = task.rounds_queries ? kept[threadIdx.x / kWarp] : query;
    const int dim = task.rounds_queries ? task.q.head_dim : 0;
    for (int d = lane; d < dim; d += kWarp) rotated[d] = query[d];
    __syncwarp();
    for (int i = lane; i < task.query_units; i += kWarp) rotate_unit(task.table, step_row, i, task.factors, rotated);
    __syncwarp();
    for (int d = lane; d < dim; d += kWarp) {
      reinterpret_cast<__nv_bfloat16*>(query)[d] = __float2bfloat16_rn(rotated[d]);
    }
    return;
  }
  const bool is_key = written < layout.num_kv_heads;
  const int head = is_key ? written : written - layout.num_kv_heads;
  const int position = span.first_position + row;
  const int slot = position % layout.block_len;
  const auto block = static_cast<size_t>(task.spans.blocks[span.first_block + position / layout.block_len]);
  std::byte* area =
      task.params.pool + block * layout.block_bytes() +
      (is_key ? layout.key_offset(task.params.layer, head) : layout.value_offset(task.params.layer, head));
  const int dim = is_key ? layout.key_dim : layout.value_dim;
  float* x = (is_key ? task.k : task.v).head(step_row, head);
  if (is_key) {
    for (int i = lane; i < task.key_units; i += kWarp) rotate_unit(task.table, step_row, i, nullptr, x);
    __syncwarp();
  }
  switch (layout.type) {
    case CacheType::kFloat32:
      return write_unquantized<float>(area, slot, dim, lane, x);
    case CacheType::kBFloat16:
      return write_unquantized<__nv_bfloat16>(area, slot, dim, lane, x);
    case CacheType::kInt8:
      return write_quantized<8>(layout, area, slot, dim, lane, x);
    case CacheType::kInt4:
      return write_quantized<4>(layout, area, slot, dim, lane, x);
  }
}

void launch_write(cudaStream_t stream, const WriteTask& task) {
  const CacheLayout& layout = task.params.layout;
  if (layout.type == CacheType::kInt4 && (layout.key_dim % 2 != 0 || layout.value_dim % 2 != 0)) {
    throw invalid_argument("an int4 cache on a GPU needs heads of even dimensions, got " +
                           std::to_string(layout.key_dim) + " and " + std::to_string(layout.value_dim));
  }
  const DeviceSpans& spans = task.spans;
  if (spans.span_count == 0 || spans.max_tokens == 0) return;
  const int head_blocks = divide_up(task.q.heads + 2 * task.written_heads, kWarps);
  launch(write_kernel, dim3(static_cast<unsigned>(spans.max_tokens) * head_blocks, spans.span_count),
         dim3(kWarps * kWarp), 0, stream, task, head_blocks);
}

}  // namespace

void rope_and_write(cudaStream_t stream, const RopeTable& table, const AttentionParams& params,
                    const DeviceSpans& spans, const HeadsView& q, const float* factors, const HeadsView& k,
                    const HeadsView& v, bool rounds_queries) {
  if (rounds_queries && q.head_dim > kMaxRounded) throw internal_error("queries of such dimensions are not rounded");
  launch_write(stream, {params, spans, k, v, q, factors, table, rotated_units(table, q.head_dim, factors),
                        rotated_units(table, k.head_dim, nullptr), k.first != nullptr ? params.layout.num_kv_heads : 0,
                        rounds_queries});
}

}  // namespace turbomind::cuda
