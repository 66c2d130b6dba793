// The engine and its operators for tests, on the CPU and on CUDA: compiled against the emulation of CUDA as
// tests/kernels/_cuda_emulated, and against CUDA as tests/kernels/_cuda_device.
#include <numeric>

#include "device/device.h"
#include "kernels/cpu/isa.h"
#include "kernels/sampling.h"
#include "python/bindings.h"
#include "testing/bindings/cuda_internals.h"
#include "testing/bindings/device.h"
#include "weights/checkpoint.h"
#include "weights/manifest_value.h"

namespace py = pybind11;

namespace turbomind {

namespace {

// Tensor `name` of an engine directory as float32.
Array<float> read_tensor(const std::string& directory, const std::string& name, const std::vector<int64_t>& shape) {
  Array<float> values(std::vector<py::ssize_t>(shape.begin(), shape.end()));
  Checkpoint(directory).read<float>(name, {shape.begin(), shape.end()}, values.mutable_data());
  return values;
}

// x [rows, in_features] W^T for a matrix stored as codes, multiplied as the engine would; None where it would multiply
// with the numbers.
py::object multiply_quantized(const std::string& directory, const std::string& name, const std::vector<int64_t>& shape,
                              const Array<float>& x) {
  const Checkpoint checkpoint(directory);
  const std::vector<ManifestValue> parts = checkpoint.parts(name, {shape.begin(), shape.end()});
  if (!can_pack(parts, true)) return py::none();
  const LinearStorage weight = pack_quantized(parts, true, in_order);
  Array<float> y({x.shape(0), static_cast<py::ssize_t>(weight.view.out_features)});
  find_device("cpu").make(1)->linear(weight.view, x.data(), size_of(x, 0), y.mutable_data(), false);
  return y;
}

// All rows of a quantized matrix of a checkpoint, looked up as those of an embedding are, and its bytes in memory.
py::tuple look_up_quantized(const std::string& directory, const std::string& name, const std::vector<int64_t>& shape) {
  const Checkpoint checkpoint(directory);
  const LinearStorage table = pack_quantized(checkpoint.parts(name, {shape.begin(), shape.end()}), true, in_order);
  std::vector<int32_t> rows(static_cast<size_t>(table.view.out_features));
  std::iota(rows.begin(), rows.end(), 0);
  Array<float> y({table.view.out_features, table.view.in_features});
  find_device("cpu").make(1)->embed(table.view, rows.data(), table.view.out_features, 1, y.mutable_data());
  return py::make_tuple(y, table.data.size() + table.scales.size() + table.mins.size());
}

}  // namespace

}  // namespace turbomind

PYBIND11_MODULE(TM_TEST_MODULE, m) {
  using namespace turbomind;
  bind_engine(m);
  m.def("supported_isas", &supported_isas);
  m.def("select_isa", &select_isa);
  m.def("current_isa", [] { return kernels().name; });
  m.def("read_tensor", &read_tensor);
  m.def("multiply_quantized", &multiply_quantized);
  m.def("look_up_quantized", &look_up_quantized);
  m.def("cache_block_bytes", [](int bits, const CacheSizes& sizes) { return cache_layout(bits, sizes).block_bytes(); });
  m.def("argmax", [](const Array<float>& logits) { return argmax(logits.data(), size_of(logits, 0)); });

  // Local, since the emulation's and the GPU's modules are loaded together.
  DeviceClass device(m, "Device", py::module_local());
  device.def(py::init([](const std::string& name) {
    const Device& found = find_device(name);
    return TestDevice{found.make(0), {}, found.traits.has_tiled_weights, {}};
  }));
  bind_heads(m);
  bind_ranks(m);
  bind_linear(m, device);
  bind_moe(device);
  bind_operations(device);
  bind_host_sampling(m);

  m.def("device_count", find_device("cuda").count);
  m.def("compute_capability", &cuda::compute_capability);
  cuda::bind_attention_internals(device);
  cuda::bind_plans(m);
  cuda::bind_sampling(device);
  cuda::bind_probes(device);
  cuda::bind_timing(device);
#ifdef TM_CUDA_EMULATED
  cuda::bind_faults(m);
#endif
}
