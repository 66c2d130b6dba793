#include <pybind11/stl.h>

#include <vector>

#include "kernels/cuda/elementwise/embedding.h"
#include "kernels/cuda/moe/moe.h"
#include "testing/bindings/cuda_bindings.h"
#include "testing/bindings/cuda_weight.h"

namespace py = pybind11;

namespace turbomind::cuda {

void bind_moe(py::module_& m) {
  // table [vocab, size], tokens [rows], y [rows, size]
  m.def("embed", [](const WeightOnDevice& table, const Array<int32_t>& tokens, float scale, const Array<float>& y) {
    const OnDevice<int32_t> ids(tokens);
    const OnDevice<float> rows(y);
    embed(nullptr, table.view(), ids.data(), static_cast<int>(tokens.size()), scale, rows.data());
    return rows.fetch(y);
  });
  // x [.., size], indices [count], y [count, size]
  m.def("gather_rows", [](const Array<float>& x, const Array<int32_t>& indices, const Array<float>& y) {
    const OnDevice<float> source(x);
    const OnDevice<int32_t> wanted(indices);
    const OnDevice<float> rows(y);
    gather_rows(nullptr, source.data(), wanted.data(), static_cast<int>(indices.size()), static_cast<int>(x.shape(1)),
                rows.data());
    return rows.fetch(y);
  });
  // x [rows, heads, head_dim], y [rows, heads, width]: the heads come to the front of y's.
  m.def("copy_heads", [](const Array<float>& x, const Array<float>& y) {
    const OnDevice<float> source(x);
    const OnDevice<float> target(y);
    const auto view = [&](const OnDevice<float>& memory, const Array<float>& array) {
      const auto width = static_cast<size_t>(array.shape(2));
      return HeadsView{
          memory.data(), static_cast<int>(array.shape(0)), width * array.shape(1), static_cast<int>(array.shape(1)),
          width,         static_cast<int>(x.shape(2))};
    };
    copy_heads(nullptr, view(source, x), view(target, y));
    return target.fetch(y);
  });
  // logits [rows, num_experts]; experts and weights [rows, top_k] give the shape of what is returned.
  m.def("route", [](const Array<float>& logits, int score, float mixer_jitter, int num_groups, int top_groups,
                    int group_score, const OptionalArray<float>& choice_bias, bool normalize, float scale,
                    const Array<int32_t>& experts, const Array<float>& weights) {
    const OnDevice<float> inputs(logits);
    const OnDevice<float> bias(choice_bias);
    const OnDevice<int32_t> chosen(experts);
    const OnDevice<float> shares(weights);
    const RouterParams params{static_cast<int>(logits.shape(1)),
                              static_cast<int>(experts.shape(1)),
                              static_cast<RouterScore>(score),
                              mixer_jitter,
                              num_groups,
                              top_groups,
                              static_cast<GroupScore>(group_score),
                              bias.data(),
                              normalize,
                              scale};
    route(nullptr, params, inputs.data(), static_cast<int>(logits.shape(0)), chosen.data(), shares.data());
    return py::make_tuple(chosen.fetch(experts), shares.fetch(weights));
  });
  // x and y [rows, hidden], y is added to; chosen and weights [rows, top_k]
  m.def("add_experts", [](const std::vector<const WeightOnDevice*>& gate_up,
                          const std::vector<const WeightOnDevice*>& down, int activation, const Array<float>& x,
                          const Array<int32_t>& chosen, const Array<float>& weights, const Array<float>& y) {
    std::vector<ExpertWeight> experts;
    for (size_t e = 0; e < gate_up.size(); ++e) experts.push_back({gate_up[e]->view(), down[e]->view()});
    const AlignedBuffer table = copy_to_device(experts.data(), experts.size() * sizeof(ExpertWeight));
    const ExpertTable view{experts[0], table.as<ExpertWeight>(), static_cast<int>(experts.size())};
    const OnDevice<float> inputs(x);
    const OnDevice<int32_t> indices(chosen);
    const OnDevice<float> shares(weights);
    const OnDevice<float> outputs(y);
    const int rows = static_cast<int>(x.shape(0));
    const int top_k = static_cast<int>(chosen.shape(1));
    const TestScratch scratch(expert_scratch_bytes(view, rows, top_k));
    add_experts(nullptr, scratch.view(), static_cast<Activation>(activation), view, inputs.data(), rows, top_k,
                indices.data(), shares.data(), outputs.data());
    return outputs.fetch(y);
  });
}

}  // namespace turbomind::cuda
