#include <vector>

#include "testing/bindings/arguments.h"

namespace turbomind {

void bind_moe(DeviceClass& device) {
  // A weight gate_up [2 size, hidden] and one down [hidden, size] for each expert; then the other operands.
  device.def("add_experts", [](TestDevice& d, const std::vector<const WeightOnDevice*>& gate_up,
                               const std::vector<const WeightOnDevice*>& down, const pybind11::args& given) {
    std::vector<ExpertWeight>& experts = d.experts.emplace_back();
    for (size_t e = 0; e < gate_up.size(); ++e) experts.push_back({gate_up[e]->expert(), down[e]->expert()});
    call_with<Activation, const float*, int, int, const int32_t*, const float*, float*>(
        d, given,
        [&](Activation activation, const auto&... rest) { d.ops->add_experts(activation, experts, rest...); });
  });
}

}  // namespace turbomind
