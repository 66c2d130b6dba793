#include "testing/bindings/kernel_bindings.h"

#include <pybind11/stl.h>

#include <vector>

#include "kernels/activation.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/paged_attention.h"
#include "kernels/rope.h"
#include "kernels/sampling.h"
#include "testing/bindings/rounded_matrix.h"
#include "testing/bindings/scaled_matrix.h"

namespace py = pybind11;

namespace turbomind {

ThreadPool& shared_pool() {
  static ThreadPool pool(available_cpu_count());
  return pool;
}

namespace {

CacheType cache_type(int bits) {
  switch (bits) {
    case 32:
      return CacheType::kFloat32;
    case 16:
      return CacheType::kBFloat16;
    case 8:
      return CacheType::kInt8;
    default:
      return CacheType::kInt4;
  }
}

// Cache write and attention of one layer with one cached layer.
void attention(uintptr_t q, uintptr_t k, uintptr_t v, uintptr_t pool, int cache_bits,
               const std::tuple<int, int, int, int, int>& sizes,
               const std::vector<std::tuple<int, int, int, std::vector<int32_t>>>& spans, float softcap, int window,
               uintptr_t alibi_slopes, uintptr_t sinks, uintptr_t out) {
  const auto& [num_heads, num_kv_heads, key_dim, value_dim, block_len] = sizes;
  std::vector<AttentionSpan> views;
  for (const auto& [first_row, count, first_position, blocks] : spans) {
    views.push_back({first_row, count, first_position, blocks.data()});
  }
  AttentionParams params;
  params.layout = {cache_type(cache_bits), 1, num_kv_heads, key_dim, value_dim, block_len};
  params.pool = pointer<std::byte>(pool);
  params.num_heads = num_heads;
  params.spans = views.data();
  params.span_count = static_cast<int>(views.size());
  params.softcap = softcap;
  params.alibi_slopes = pointer<float>(alibi_slopes);
  params.window = window;
  params.sinks = pointer<float>(sinks);
  std::vector<float> workspace(attention_workspace_floats(params));
  const auto view = [](uintptr_t first, int heads, int dim) {
    return HeadsView{pointer<float>(first), 0, static_cast<size_t>(heads) * dim, heads, static_cast<size_t>(dim), dim};
  };
  write_cache(shared_pool(), params, view(k, num_kv_heads, key_dim), view(v, num_kv_heads, value_dim));
  paged_attention(shared_pool(), params, view(q, num_heads, key_dim), workspace.data(), pointer<float>(out));
}

}  // namespace

void bind_kernels(py::module_& m) {
  m.def("linear", [](uintptr_t x, int rows, uintptr_t weight, int dtype, int out_features, int in_features,
                     uintptr_t bias, uintptr_t y, bool accumulate) {
    LinearScratch scratch;
    const LinearWeight view{pointer<void>(weight), format_of(static_cast<DType>(dtype)), out_features, in_features,
                            pointer<float>(bias)};
    linear(shared_pool(), scratch, view, pointer<float>(x), rows, pointer<float>(y), accumulate);
  });
  // Rounds w [out, in] float32 to codes of `bits` bits and multiplies x with them.
  m.def("rounded_linear",
        [](uintptr_t x, int rows, uintptr_t w, int bits, int group, int out_features, int in_features, uintptr_t y) {
          const RoundedMatrix matrix(pointer<float>(w), out_features, in_features, bits, group);
          LinearScratch scratch;
          linear(shared_pool(), scratch, matrix.view, pointer<float>(x), rows, pointer<float>(y), false);
        });
  m.def("scaled_linear", [](uintptr_t x, int rows, uintptr_t codes, bool is_float8, uintptr_t scales, int block_outputs,
                            int block_inputs, int out_features, int in_features, uintptr_t bias, uintptr_t y) {
    const ScaledMatrix matrix(pointer<uint8_t>(codes), is_float8, pointer<float>(scales), {block_outputs, block_inputs},
                              out_features, in_features);
    LinearWeight weight = matrix.storage.view;
    weight.bias = pointer<float>(bias);
    LinearScratch scratch;
    linear(shared_pool(), scratch, weight, pointer<float>(x), rows, pointer<float>(y), false);
  });
  m.def("norm", [](uintptr_t x, bool is_layer_norm, uintptr_t weight, uintptr_t bias, float eps, int rows, int size,
                   uintptr_t y) {
    const NormWeight view{is_layer_norm ? NormKind::kLayer : NormKind::kRms, eps, pointer<float>(weight),
                          pointer<float>(bias)};
    norm(shared_pool(), view, pointer<float>(x), rows, size, pointer<float>(y));
  });
  m.def("activate", [](uintptr_t x, int activation, bool is_gated, int rows, int size, uintptr_t y) {
    (is_gated ? activate_gated : activate)(shared_pool(), static_cast<Activation>(activation), pointer<float>(x), rows,
                                           size, pointer<float>(y));
  });
  m.def("rope", [](uintptr_t x, uintptr_t cosine, uintptr_t sine, int pairs, bool is_interleaved, int rows, int heads,
                   int head_dim, uintptr_t factors) {
    const auto dim = static_cast<size_t>(head_dim);
    rope(shared_pool(), {pointer<float>(cosine), pointer<float>(sine), pairs, is_interleaved},
         {pointer<float>(x), rows, heads * dim, heads, dim, head_dim}, pointer<float>(factors));
  });
  m.def("scale_and_cap", [](float scale, float softcap, int rows, int size, uintptr_t x) {
    scale_and_cap(shared_pool(), scale, softcap, rows, size, pointer<float>(x));
  });
  m.def("argmax", [](uintptr_t logits, int size) { return argmax(pointer<float>(logits), size); });
  m.def("attention", &attention);
  m.def("cache_block_bytes", [](int cache_bits, int num_kv_heads, int key_dim, int value_dim, int block_len) {
    return CacheLayout{cache_type(cache_bits), 1, num_kv_heads, key_dim, value_dim, block_len}.block_bytes();
  });
}

}  // namespace turbomind
