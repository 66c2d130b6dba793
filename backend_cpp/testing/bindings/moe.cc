#include <vector>

#include "testing/bindings/device.h"

namespace turbomind {

void bind_moe(DeviceClass& device) {
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
               for (size_t e = 0; e < gate_up.size(); ++e) experts.push_back({gate_up[e]->expert(), down[e]->expert()});
               d.ops->add_experts(static_cast<Activation>(activation), experts, x, x.size(0), chosen.size(1), chosen,
                                  weights, y);
               return y.fetch();
             });
}

}  // namespace turbomind
