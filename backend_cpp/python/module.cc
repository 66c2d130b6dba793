// lmdeploy._turbomind: the engine and its kernels for Python. Wrapped by lmdeploy/turbomind/engine.py and ops.py.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "base/thread_pool.h"
#include "kernels/cpu/isa.h"
#include "python/engine_bindings.h"
#include "testing/bindings/kernel_bindings.h"
#include "weights/checkpoint.h"
#include "weights/pack_quantized.h"

namespace py = pybind11;
using namespace turbomind;

PYBIND11_MODULE(_turbomind, m) {
  bind_engine(m);
  m.def("supported_isas", &supported_isas);
  m.def("select_isa", &select_isa, py::arg("name"));
  m.def("current_isa", [] { return kernels().name; });
  m.def("available_cpu_count", &available_cpu_count);
  // Tensor `name` of an engine directory as float32; for tests.
  m.def("read_tensor",
        [](const std::string& directory, const std::string& name, const std::vector<int64_t>& shape, uintptr_t values) {
          Checkpoint(directory).read<float>(name, {shape.begin(), shape.end()}, pointer<float>(values));
        });
  // x W^T for a matrix stored as codes, multiplied as the engine would; false where it would multiply with the numbers.
  // For tests.
  m.def("multiply_codes", [](const std::string& directory, const std::string& name, const std::vector<int64_t>& shape,
                             uintptr_t x, int rows, uintptr_t y) {
    const Checkpoint checkpoint(directory);
    const std::vector<ManifestValue> parts = checkpoint.parts(name, {shape.begin(), shape.end()});
    if (!can_pack(parts)) return false;
    ThreadPool pool(1);
    LinearScratch scratch;
    const LinearStorage weight = pack_quantized(parts, in_order);
    linear(pool, scratch, weight.view, pointer<float>(x), rows, pointer<float>(y), false);
    return true;
  });
  bind_kernels(m);
  bind_moe_kernels(m);
}
