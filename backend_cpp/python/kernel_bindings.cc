#include "python/kernel_bindings.h"

#include <pybind11/stl.h>

#include <vector>

#include "kernels/activation.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/paged_attention.h"
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

// RoPE, cache write and attention of one layer; qkv is changed as rope_and_cache_write says.
void attention(uintptr_t qkv, uintptr_t rope_cos, uintptr_t rope_sin, uintptr_t pool, int cache_bits, int num_layers,
               int layer, int num_heads, int num_kv_heads, int head_dim, int block_len, float scale,
               const std::vector<std::tuple<int, int, int, std::vector<int32_t>>>& spans, uintptr_t out) {
  std::vector<AttentionSpan> views;
  for (const auto& [first_row, count, first_position, blocks] : spans) {
    views.push_back({first_row, count, first_position, blocks.data()});
  }
  const AttentionParams params{{cache_type(cache_bits), num_layers, num_kv_heads, head_dim, block_len},
                               pointer<std::byte>(pool),
                               layer,
                               num_heads,
                               scale,
                               views.data(),
                               static_cast<int>(views.size())};
  std::vector<float> workspace(attention_workspace_floats(params));
  rope_and_cache_write(shared_pool(), params, pointer<float>(rope_cos), pointer<float>(rope_sin), pointer<float>(qkv));
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
  m.def("rms_norm", [](uintptr_t x, uintptr_t weight, float eps, int rows, int size, uintptr_t y) {
    rms_norm(shared_pool(), pointer<float>(x), pointer<float>(weight), eps, rows, size, pointer<float>(y));
  });
  m.def("silu_and_mul", [](uintptr_t gate_up, int rows, int size, uintptr_t y) {
    silu_and_mul(shared_pool(), pointer<float>(gate_up), rows, size, pointer<float>(y));
  });
  m.def("argmax", [](uintptr_t logits, int size) { return argmax(pointer<float>(logits), size); });
  m.def("attention", &attention);
  m.def("cache_block_bytes", [](int cache_bits, int num_layers, int num_kv_heads, int head_dim, int block_len) {
    return CacheLayout{cache_type(cache_bits), num_layers, num_kv_heads, head_dim, block_len}.block_bytes();
  });
}

}  // namespace turbomind
