#include <pybind11/stl.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cuda/attention/paged_attention.h"
#include "testing/bindings/cuda_bindings.h"

namespace py = pybind11;

namespace turbomind::cuda {

namespace {

using Sizes = std::tuple<int, int, int, int, int>;  // query heads, key heads, key_dim, value_dim, block_len

AttentionParams params_of(int cache_bits, const Sizes& sizes) {
  const auto& [num_heads, num_kv_heads, key_dim, value_dim, block_len] = sizes;
  const CacheType type = cache_bits == 32   ? CacheType::kFloat32
                         : cache_bits == 16 ? CacheType::kBFloat16
                         : cache_bits == 8  ? CacheType::kInt8
                                            : CacheType::kInt4;
  AttentionParams params;
  params.layout = {type, 1, num_kv_heads, key_dim, value_dim, block_len};
  params.num_heads = num_heads;
  return params;
}

// Cache write and attention of one layer with one cached layer. Returns out and what the pool holds then.
//   q, k, v, out [rows, heads, dim]
//   spans [spans, 4] as DeviceSpan; max_context and span_count: the shape of the launch, at least what spans needs
py::tuple attention(const Array<float>& q, const Array<float>& k, const Array<float>& v, const Array<uint8_t>& pool,
                    int cache_bits, const Sizes& sizes, const Array<int32_t>& spans, const Array<int32_t>& blocks,
                    int max_rows, int max_context, float softcap, int window, const OptionalArray<float>& alibi_slopes,
                    const OptionalArray<float>& sinks, const Array<float>& out) {
  const auto& [num_heads, num_kv_heads, key_dim, value_dim, block_len] = sizes;
  const OnDevice<float> queries(q);
  const OnDevice<float> keys(k);
  const OnDevice<float> values(v);
  const OnDevice<uint8_t> cache(pool);
  const OnDevice<int32_t> span_table(spans);
  const OnDevice<int32_t> block_table(blocks);
  const OnDevice<float> slopes(alibi_slopes);
  const OnDevice<float> sink_logits(sinks);
  const OnDevice<float> output(out);
  AttentionParams params = params_of(cache_bits, sizes);
  params.pool = reinterpret_cast<std::byte*>(cache.data());
  params.softcap = softcap;
  params.alibi_slopes = slopes.data();
  params.window = window;
  params.sinks = sink_logits.data();
  const DeviceSpans shape{reinterpret_cast<const DeviceSpan*>(span_table.data()), block_table.data(),
                          static_cast<int>(spans.shape(0)), max_rows, max_context};
  const AlignedBuffer workspace = allocate(attention_workspace_floats(params, shape) * sizeof(float));
  const auto view = [](const OnDevice<float>& first, int heads, int dim) {
    return HeadsView{first.data(), 0, static_cast<size_t>(heads) * dim, heads, static_cast<size_t>(dim), dim};
  };
  write_cache(nullptr, params, shape, view(keys, num_kv_heads, key_dim), view(values, num_kv_heads, value_dim));
  paged_attention(nullptr, params, shape, view(queries, num_heads, key_dim), workspace.as<float>(), output.data());
  return py::make_tuple(output.fetch(out), cache.fetch(pool));
}

// Seconds of one call, the median of `rounds`, and the bytes of the cache that it reads: so many sequences decode
// behind `context` tokens each, in blocks of their own.
std::pair<double, size_t> time_attention(int cache_bits, const Sizes& sizes, int sequences, int context, int rounds) {
  AttentionParams params = params_of(cache_bits, sizes);
  const CacheLayout& layout = params.layout;
  const int blocks_each = divide_up(context, layout.block_len);
  std::vector<DeviceSpan> spans;
  std::vector<int32_t> blocks(static_cast<size_t>(sequences) * blocks_each);
  std::iota(blocks.begin(), blocks.end(), 0);
  for (int s = 0; s < sequences; ++s) spans.push_back({s, 1, context - 1, s * blocks_each});
  const AlignedBuffer span_table = copy_to_device(spans.data(), spans.size() * sizeof(DeviceSpan));
  const AlignedBuffer block_table = copy_to_device(blocks.data(), blocks.size() * sizeof(int32_t));
  const DeviceSpans shape{span_table.as<DeviceSpan>(), block_table.as<int32_t>(), sequences, 1, context};
  const auto zeros = [](size_t bytes) {
    AlignedBuffer buffer = allocate(bytes);
    check(cudaMemset(buffer.as<void>(), 0, bytes), "clearing memory");
    return buffer;
  };
  const AlignedBuffer pool = zeros(blocks.size() * layout.block_bytes());
  params.pool = pool.as<std::byte>();
  const auto rows = static_cast<size_t>(sequences) * params.num_heads;
  const AlignedBuffer queries = zeros(rows * layout.key_dim * sizeof(float));
  const AlignedBuffer out = allocate(rows * layout.value_dim * sizeof(float));
  const AlignedBuffer workspace = allocate(attention_workspace_floats(params, shape) * sizeof(float));
  const auto dim = static_cast<size_t>(layout.key_dim);
  const HeadsView view{queries.as<float>(), sequences, params.num_heads * dim, params.num_heads, dim, layout.key_dim};
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaEventCreateWithFlags(&begin, cudaEventDefault), "creating an event");
  check(cudaEventCreateWithFlags(&end, cudaEventDefault), "creating an event");
  std::vector<float> milliseconds;
  for (int round = 0; round < rounds; ++round) {
    check(cudaEventRecord(begin, nullptr), "timing attention");
    paged_attention(nullptr, params, shape, view, workspace.as<float>(), out.as<float>());
    check(cudaEventRecord(end, nullptr), "timing attention");
    check(cudaEventSynchronize(end), "running attention");
    check(cudaEventElapsedTime(&milliseconds.emplace_back(), begin, end), "timing attention");
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::nth_element(milliseconds.begin(), milliseconds.begin() + rounds / 2, milliseconds.end());
  const size_t bytes_of_token = layout.block_bytes() / static_cast<size_t>(layout.block_len);
  return {milliseconds[static_cast<size_t>(rounds / 2)] * 1e-3, rows / params.num_heads * context * bytes_of_token};
}

}  // namespace

void bind_attention(py::module_& m) {
  // Floats of the workspace of a launch of that shape, and of any; sizes as in attention.
  m.def("attention_workspaces",
        [](int cache_bits, const Sizes& sizes, int span_count, int max_rows, int max_context, int window) {
          AttentionParams params = params_of(cache_bits, sizes);
          params.window = window;
          return std::pair(attention_workspace_floats(params, {nullptr, nullptr, span_count, max_rows, max_context}),
                           most_attention_workspace_floats(params));
        });
  m.def("attention", &attention);
  m.def("time_attention", &time_attention);
}

}  // namespace turbomind::cuda
