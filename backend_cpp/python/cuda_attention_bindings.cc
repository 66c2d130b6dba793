#include <pybind11/stl.h>

#include <string>
#include <tuple>
#include <vector>

#include "kernels/cuda/paged_attention.h"
#include "python/cuda_bindings.h"

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
}

}  // namespace turbomind::cuda
