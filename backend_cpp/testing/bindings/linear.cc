#include <algorithm>
#include <vector>

#include "testing/bindings/arguments.h"
#include "weights/w8a8.h"
#include "weights/weight_reader.h"

namespace py = pybind11;

namespace turbomind {

namespace {

template <class T>
Array<T> array_of(const AlignedBuffer& buffer) {
  return Array<T>(static_cast<py::ssize_t>(buffer.size() / sizeof(T)), buffer.as<T>());
}

// Rounds w [out_features, in_features] and packs it, as the engine does while it loads; returns codes and scales.
py::tuple pack_rounded(const Array<float>& w, int bits, int group) {
  const LinearStorage storage = round_matrix(w.data(), size_of(w, 0), size_of(w, 1), bits, group, in_order);
  return py::make_tuple(array_of<uint8_t>(storage.data), array_of<uint16_t>(storage.scales));
}

// Packs codes [out_features, in_features], one in a byte.
Array<uint8_t> pack_values(const Array<uint8_t>& quantized, int bits, int group) {
  const PackedShape shape{size_of(quantized, 0), size_of(quantized, 1), bits, group};
  Array<uint8_t> packed(static_cast<py::ssize_t>(shape.quantized_bytes()));
  const size_t tile_bytes = shape.group_bytes() * static_cast<size_t>(shape.groups());
  for (int tile = 0; tile < shape.tiles(); ++tile) {
    const int first = tile * kTileOutputs;
    pack_tile(shape, quantized.data() + static_cast<size_t>(first) * shape.in_features,
              std::min(kTileOutputs, shape.out_features - first),
              packed.mutable_data() + static_cast<size_t>(tile) * tile_bytes);
  }
  return packed;
}

// Packs codes of int8 or float8 [out_features, in_features] with a float32 scale for each block of outputs and inputs,
// as the engine does with a checkpoint's; returns codes, the group, scales of blocks (or None) and of outputs.
py::tuple pack_scaled(const Array<uint8_t>& quantized, bool is_float8, const Array<float>& scales, int block_outputs,
                      int block_inputs) {
  const auto tensor = [](const char* dtype, const py::array& array) {
    return CheckpointTensor{dtype,
                            {array.shape(0), array.shape(1)},
                            static_cast<const std::byte*>(array.data()),
                            static_cast<size_t>(array.nbytes()),
                            nullptr};
  };
  const W8A8Matrix matrix(tensor(is_float8 ? "F8_E4M3" : "I8", quantized), tensor("F32", scales),
                          {block_outputs, block_inputs});
  std::vector<QuantizedRow> outputs;
  for (int output = 0; output < matrix.out_features(); ++output) outputs.push_back({&matrix, output});
  const LinearStorage storage = matrix.pack(outputs, true, in_order);
  const auto floats = [](const AlignedBuffer& buffer) -> py::object {
    if (buffer.size() == 0) return py::none();
    return array_of<float>(buffer);
  };
  return py::make_tuple(array_of<uint8_t>(storage.data), storage.view.group, floats(storage.block_scales),
                        floats(storage.output_scales));
}

}  // namespace

void bind_linear(py::module_& m, DeviceClass& device) {
  m.def("pack_quantized", &pack_rounded);
  m.def("pack_values", &pack_values);
  m.def("pack_scaled", &pack_scaled);
  // Local, since the emulation's and the GPU's modules are loaded together.
  py::class_<LinearWeight>(m, "LinearWeight", py::module_local());
  py::class_<WeightOnDevice>(m, "Weight", py::module_local())
      .def_property_readonly("view", &WeightOnDevice::view)
      .def_property_readonly("layer", &WeightOnDevice::layer);
  device.def(
      "weight", [](TestDevice& d, const py::args& fields) { return std::make_unique<WeightOnDevice>(d, fields); },
      py::keep_alive<0, 1>());
  device.def("gated_mlp", [](TestDevice& d, const py::args& given) {
    call_with<LinearWeight, Activation, LinearWeight, float*, float*, LinearInput, int, float*, bool>(
        d, given,
        [&](const LinearWeight& gate_up, Activation activation, const LinearWeight& down, float* projected,
            float* activated,
            const auto&... rest) { d.ops->gated_mlp({gate_up, activation, down, projected, activated}, rest...); });
  });
}

}  // namespace turbomind
