#include <pybind11/stl.h>

#include <vector>

#include "testing/bindings/device.h"
#include "testing/bindings/weight.h"

namespace py = pybind11;

namespace turbomind {

void bind_moe(DeviceClass& device) {
  // Fields of RouterParams. logits [rows, num_experts]; experts_like and weights_like [rows, top_k]
  device.def("route", [](TestDevice& d, const Array<float>& logits, int score, float mixer_jitter, int num_groups,
                         int top_groups, int group_score, const OptionalArray<float>& choice_bias, bool normalize,
                         float scale, const OptionalArray<float>& expert_scales, const Array<int32_t>& experts_like,
                         const Array<float>& weights_like) {
    const OnDevice<float> inputs(*d.ops, logits);
    const OnDevice<float> bias(*d.ops, choice_bias);
    const OnDevice<float> scales(*d.ops, expert_scales);
    const OnDevice<int32_t> experts(*d.ops, experts_like);
    const OnDevice<float> weights(*d.ops, weights_like);
    const RouterParams params{size_of(logits, 1),
                              size_of(experts_like, 1),
                              static_cast<RouterScore>(score),
                              mixer_jitter,
                              num_groups,
                              top_groups,
                              static_cast<GroupScore>(group_score),
                              bias.data(),
                              normalize,
                              scale,
                              scales.data()};
    d.ops->route(params, inputs.data(), size_of(logits, 0), experts.data(), weights.data());
    return py::make_tuple(experts.fetch(experts_like), weights.fetch(weights_like));
  });
  // From now on steps have this many rows, in the front of what operators are given.
  device.def("begin_step", [](TestDevice& d, int rows) {
    const int32_t block = 0;
    d.ops->set_spans(SpanSet{}, {{0, rows, 0, &block}}, rows);
  });
  // A weight gate_up [2 size, hidden] and one down [hidden, size] for each expert; x, y [rows, hidden]; chosen, weights
  // [rows, top_k]. Returns y with the sums added.
  device.def("add_experts", [](TestDevice& d, const std::vector<const WeightOnDevice*>& gate_up,
                               const std::vector<const WeightOnDevice*>& down, int activation, const Array<float>& x,
                               const Array<int32_t>& chosen, const Array<float>& weights, const Array<float>& y) {
    std::vector<ExpertWeight>& experts = d.experts.emplace_back();
    for (size_t e = 0; e < gate_up.size(); ++e) experts.push_back({gate_up[e]->view(), down[e]->view()});
    const OnDevice<float> inputs(*d.ops, x);
    const OnDevice<int32_t> indices(*d.ops, chosen);
    const OnDevice<float> shares(*d.ops, weights);
    const OnDevice<float> outputs(*d.ops, y);
    d.ops->add_experts(static_cast<Activation>(activation), experts, inputs.data(), size_of(x, 0), size_of(chosen, 1),
                       indices.data(), shares.data(), outputs.data());
    return outputs.fetch(y);
  });
}

}  // namespace turbomind
