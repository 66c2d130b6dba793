// Faults of the emulated runtime, for tests.
#include "testing/cuda_emulated/faults.h"
#include "testing/bindings/cuda_internals.h"

namespace turbomind::cuda {

void bind_faults(pybind11::module_& m) {
  m.def("inject_fault", [](const std::string& name, int skipped, int error, bool lasts) {
    emulated::inject_fault(name, skipped, static_cast<cudaError_t>(error), lasts);
  });
  m.def("set_device_memory", &emulated::set_device_memory);
  m.def("clear_faults", &emulated::clear_faults);
}

}  // namespace turbomind::cuda
