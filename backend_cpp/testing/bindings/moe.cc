#include <vector>

#include "testing/bindings/device.h"

namespace py = pybind11;

namespace turbomind {

void bind_moe(DeviceClass& device) {
  // Fields of RouterParams. logits [rows, num_experts]; experts_like and weights_like [rows, top_k]
  add_method(device, "route",
             [](TestDevice& d, const Floats& logits, int score, float mixer_jitter, int num_groups, int top_groups,
                int group_score, const Floats& choice_bias, bool normalize, float scale, const Floats& expert_scales,
                const Ints& experts_like, const Floats& weights_like) {
               const RouterParams params{logits.size(1),
                                         experts_like.size(1),
                                         static_cast<RouterScore>(score),
                                         mixer_jitter,
                                         num_groups,
                                         top_groups,
                                         static_cast<GroupScore>(group_score),
                                         choice_bias,
                                         normalize,
                                         scale,
                                         expert_scales};
               d.ops->route(params, logits, logits.size(0), experts_like, weights_like);
               return py::make_tuple(experts_like.fetch(), weights_like.fetch());
             });
  // From now on steps have this many rows, in the front of what operators are given.
  device.def("begin_step", [](TestDevice& d, int rows) {
    const int32_t block = 0;
    d.ops->set_spans(SpanSet{}, {{0, rows, 0, &block}}, rows);
  });
  // A weight gate_up [2 size, hidden] and one down [hidden, size] for each expert; x, y [rows, hidden]; chosen, weights
  // [rows, top_k]. Returns y with the sums added.
  add_method(device, "add_experts",
             [](TestDevice& d, const std::vector<const WeightOnDevice*>& gate_up,
                const std::vector<const WeightOnDevice*>& down, int activation, const Floats& x, const Ints& chosen,
                const Floats& weights, const Floats& y) {
               std::vector<ExpertWeight>& experts = d.experts.emplace_back();
               for (size_t e = 0; e < gate_up.size(); ++e) experts.push_back({gate_up[e]->view(), down[e]->view()});
               d.ops->add_experts(static_cast<Activation>(activation), experts, x, x.size(0), chosen.size(1), chosen,
                                  weights, y);
               return y.fetch();
             });
}

}  // namespace turbomind
