// What tests ask of kernels/cuda beyond the operators of a device. Methods of a TestDevice that is "cuda".
#pragma once

#include "base/error.h"
#include "device/cuda/operators.h"
#include "testing/bindings/device.h"

namespace turbomind::cuda {

inline CudaOperators& operators_of(TestDevice& device) {
  auto* ops = dynamic_cast<CudaOperators*>(device.ops.get());
  if (ops == nullptr) throw invalid_argument("only a device that is cuda has this");
  return *ops;
}

void bind_attention_internals(DeviceClass& device);
void bind_latent_plan(pybind11::module_& m);
void bind_prefill_plan(pybind11::module_& m);
void bind_sampling(DeviceClass& device);
void bind_probes(DeviceClass& device);
void bind_timing(DeviceClass& device);
void bind_faults(pybind11::module_& m);  // of the emulation

}  // namespace turbomind::cuda
