#include "python/kernel_bindings.h"

#include <pybind11/stl.h>

#include <vector>

#include "kernels/activation.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/paged_attention.h"
#include "kernels/rope.h"
#include "kernels/sampling.h"
#include "python/rounded_matrix.h"

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

// RoPE, cache write and attention of one layer; q and k are rotated, and q scaled, in place.
void attention(uintptr_t qkv, int rows, uintptr_t rope_cos, uintptr_t rope_sin, uintptr_t pool, int cache_bits,
               int num_layers, int layer, int num_heads, int num_kv_heads, int head_dim, int block_len, float scale,
               const std::vector<std::tuple<int, int, int, std::vector<int32_t>>>& spans, uintptr_t out) {
  std::vector<AttentionSpan> views;
  for (const auto& [first_row, count, first_position, blocks] : spans) {
    views.push_back({first_row, count, first_position, blocks.data()});
  }
  const AttentionParams params{{cache_type(cache_bits), num_layers, num_kv_heads, head_dim, block_len},
                               pointer<std::byte>(pool),
                               layer,
                               num_heads,
                               views.data(),
                               static_cast<int>(views.size())};
  std::vector<float> workspace(attention_workspace_floats(params));
  const RopeTable table{pointer<float>(rope_cos), pointer<float>(rope_sin), head_dim / 2};
  const size_t width = static_cast<size_t>(num_heads + 2 * num_kv_heads) * head_dim;
  const std::vector<float> factors(static_cast<size_t>(rows), scale);
  const HeadsView queries{pointer<float>(qkv), rows, width, num_heads, static_cast<size_t>(head_dim), head_dim};
  HeadsView keys = queries;
  keys.first += static_cast<size_t>(num_heads) * head_dim;
  keys.heads = num_kv_heads;
  rope(shared_pool(), table, queries, factors.data());
  rope(shared_pool(), table, keys, nullptr);
  write_cache(shared_pool(), params, pointer<float>(qkv));
  paged_attention(shared_pool(), params, pointer<float>(qkv), workspace.data(), pointer<float>(out));
}

}  // namespace

void bind_kernels(py::module_& m) {
  m.def("linear", [](uintptr_t x, int rows, uintptr_t weight, bool is_bfloat16, int out_features, int in_features,
                     uintptr_t bias, uintptr_t y, bool accumulate) {
    LinearScratch scratch;
    const LinearWeight view{pointer<void>(weight), is_bfloat16 ? WeightFormat::kBFloat16 : WeightFormat::kFloat32,
                            out_features, in_features, pointer<float>(bias)};
    linear(shared_pool(), scratch, view, pointer<float>(x), rows, pointer<float>(y), accumulate);
  });
  // Rounds w [out, in] float32 to codes of `bits` bits and multiplies x with them.
  m.def("rounded_linear",
        [](uintptr_t x, int rows, uintptr_t w, int bits, int group, int out_features, int in_features, uintptr_t y) {
          const RoundedMatrix matrix(pointer<float>(w), out_features, in_features, bits, group);
          LinearScratch scratch;
          linear(shared_pool(), scratch, matrix.view, pointer<float>(x), rows, pointer<float>(y), false);
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
  m.def("cache_block_bytes", [](int cache_bits, int num_layers, int num_kv_heads, int head_dim, int block_len) {
    return CacheLayout{cache_type(cache_bits), num_layers, num_kv_heads, head_dim, block_len}.block_bytes();
  });
}

}  // namespace turbomind
