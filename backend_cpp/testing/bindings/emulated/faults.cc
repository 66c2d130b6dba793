// Faults of the emulated runtime, for tests.
#include "testing/cuda_emulated/faults.h"

#include <array>

#include "testing/bindings/cuda_internals.h"
#include "testing/cuda_emulated/block.h"
#include "testing/cuda_emulated/deferred.h"
#include "testing/cuda_emulated/launch_limits.h"

namespace turbomind::cuda {

namespace {

struct FewNumbers {
  int count;
  const float* data;
};

void ignore_kernel(FewNumbers) {
  await_previous();
}

// Launches a kernel with memory of a device, pinned memory or other memory of the host.
void launch_with(const std::string& memory) {
  constexpr int kCount = 4;
  float buffer[kCount] = {};
  void* data = buffer;
  if (memory == "device") check(cudaMalloc(&data, sizeof(buffer)), "allocating");
  if (memory == "pinned") check(cudaMallocHost(&data, sizeof(buffer)), "allocating");
  launch(ignore_kernel, dim3(1), dim3(kWarp), 0, nullptr, FewNumbers{kCount, static_cast<const float*>(data)});
  if (memory == "device") check(cudaFree(data), "freeing");
  if (memory == "pinned") check(cudaFreeHost(data), "freeing");
}

}  // namespace

void bind_faults(pybind11::module_& m) {
  m.def("inject_fault", [](const std::string& name, int skipped, int error, bool lasts) {
    emulated::inject_fault(name, skipped, static_cast<cudaError_t>(error), lasts);
  });
  m.def("set_device_memory", &emulated::set_device_memory);
  m.def("clear_faults", [] {
    emulated::clear_faults();
    emulated::defer_work(0);
  });
  m.def("defer_work", &emulated::defer_work);
  m.def("calls_of", &emulated::calls_of);
  m.def("loads_eagerly", &emulated::loads_eagerly);
  m.def("restart_runtime", &emulated::restart_runtime);
  m.def("check_launch", [](std::array<unsigned, 3> grid, unsigned threads, size_t shared_bytes) {
    return static_cast<int>(emulated::check_launch({grid[0], grid[1], grid[2]}, {threads, 1, 1}, shared_bytes));
  });
  m.def("launch_with", &launch_with);
  m.def("set_shared_memory", &emulated::set_shared_memory);
  m.def("set_only_checks_launches", &emulated::set_only_checks_launches);
  m.def("set_library", [](const std::string& name, int library) {
    emulated::set_library(name, static_cast<emulated::Library>(library));
  });
  m.def("library_launches", &emulated::library_launches);
}

}  // namespace turbomind::cuda
