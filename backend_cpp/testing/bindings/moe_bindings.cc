#include <vector>

#include "kernels/head_linear.h"
#include "kernels/moe.h"
#include "testing/bindings/kernel_bindings.h"
#include "testing/bindings/rounded_matrix.h"

namespace py = pybind11;

namespace turbomind {

namespace {

void route_rows(uintptr_t logits, int rows, int num_experts, int top_k, int scores, float mixer_jitter, int num_groups,
                int top_groups, int group_score, uintptr_t choice_bias, bool normalize, float scale, uintptr_t experts,
                uintptr_t weights) {
  const RouterParams params{num_experts, top_k,      static_cast<RouterScore>(scores),     mixer_jitter,
                            num_groups,  top_groups, static_cast<GroupScore>(group_score), pointer<float>(choice_bias),
                            normalize,   scale};
  route(shared_pool(), params, pointer<float>(logits), rows, pointer<int32_t>(experts), pointer<float>(weights));
}

// gate_up [experts, 2 size, hidden] and down [experts, hidden, size] float32; bits 0 keeps them, 8 or 4 rounds them.
void experts(uintptr_t x, int rows, uintptr_t gate_up, uintptr_t down, int num_experts, int size, int hidden, int bits,
             int group, int top_k, int activation, uintptr_t chosen, uintptr_t weights, uintptr_t y) {
  std::vector<RoundedMatrix> rounded;
  const auto view = [&](const float* w, int out_features, int in_features) {
    if (bits == 0) return LinearWeight{w, WeightFormat::kFloat32, out_features, in_features};
    return rounded.emplace_back(w, out_features, in_features, bits, group).view;
  };
  std::vector<ExpertWeight> views;
  const size_t elements = static_cast<size_t>(size) * hidden;
  for (int e = 0; e < num_experts; ++e) {
    views.push_back({view(pointer<float>(gate_up) + 2 * elements * e, 2 * size, hidden),
                     view(pointer<float>(down) + elements * e, hidden, size)});
  }
  LinearScratch linear_scratch;
  ExpertScratch scratch;
  add_experts(shared_pool(), linear_scratch, scratch, static_cast<Activation>(activation), views, pointer<float>(x),
              rows, top_k, pointer<int32_t>(chosen), pointer<float>(weights), pointer<float>(y));
}

}  // namespace

void bind_moe_kernels(py::module_& m) {
  m.def("route", &route_rows);
  m.def("experts", &experts);
  // x [rows, heads, in_features], w [heads, out_features, in_features], y [rows, heads, out_features].
  m.def("head_linear",
        [](uintptr_t x, int rows, int heads, int out_features, int in_features, uintptr_t w, int dtype, uintptr_t y) {
          const LinearWeight weight{pointer<void>(w), format_of(static_cast<DType>(dtype)), heads * out_features,
                                    in_features};
          const auto in = static_cast<size_t>(in_features);
          const auto out = static_cast<size_t>(out_features);
          head_linear(shared_pool(), weight, {pointer<float>(x), rows, heads * in, heads, in, in_features},
                      {pointer<float>(y), rows, heads * out, heads, out, out_features});
        });
}

}  // namespace turbomind
