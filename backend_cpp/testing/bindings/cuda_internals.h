// Test access to kernels/cuda beyond the operators of a device. Methods of a TestDevice that is "cuda".
#pragma once

#include <functional>

#include "base/error.h"
#include "device/cuda/operators.h"
#include "testing/bindings/arguments.h"

namespace turbomind::cuda {

inline CudaOperators& operators_of(TestDevice& device) {
  auto* ops = dynamic_cast<CudaOperators*>(device.ops.get());
  if (ops == nullptr) throw invalid_argument("only a device that is cuda has this");
  return *ops;
}

// Binds what is launched by a function that takes these operands after the stream.
template <class... Parameters, class Launch>
void bind_launch(DeviceClass& device, const char* name, Launch launch) {
  device.def(name, [launch](TestDevice& d, const pybind11::args& given) {
    call_with<Parameters...>(d, given, [&](const auto&... taken) { launch(operators_of(d).stream(), taken...); });
  });
}
template <class... Parameters>
void bind_launch(DeviceClass& device, const char* name, void (*launch)(cudaStream_t, Parameters...)) {
  bind_launch<Parameters...>(device, name, [launch](auto... operands) { launch(operands...); });
}

// Seconds of one call of `body(number)`: `calls` of them are captured as a graph, after one that is not, and the median
// of `rounds` launches of it counts.
double graph_seconds(CudaOperators& ops, int calls, int rounds, const std::function<void(int)>& body);

void bind_attention_internals(DeviceClass& device);
void bind_plans(pybind11::module_& m);
void bind_sampling(DeviceClass& device);
void bind_probes(DeviceClass& device);
void bind_timing(DeviceClass& device);
void bind_faults(pybind11::module_& m);  // of the emulation

}  // namespace turbomind::cuda
