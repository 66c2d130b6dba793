#include <algorithm>
#include <vector>

#include "testing/bindings/device.h"
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
  py::class_<WeightOnDevice>(m, "Weight", py::module_local());
  // Fields of LinearWeight; `data` row-major, which becomes tiled where the device has that, or packed.
  device.def(
      "weight",
      [](TestDevice& d, const py::array& data, int format, int out_features, int in_features,
         const OptionalArray<float>& bias, int group, const OptionalArray<uint16_t>& scales,
         const OptionalArray<uint8_t>& zeros, const OptionalArray<int32_t>& input_order,
         const OptionalArray<float>& block_scales, const OptionalArray<float>& output_scales,
         const OptionalArray<uint16_t>& mins, int scale_groups) {
        return std::make_unique<WeightOnDevice>(*d.ops, data, static_cast<WeightFormat>(format), out_features,
                                                in_features, bias, group, scales, zeros, input_order, block_scales,
                                                output_scales, mins, scale_groups, d.has_tiled_weights);
      },
      py::arg("data"), py::arg("format"), py::arg("out_features"), py::arg("in_features"), py::arg("bias") = py::none(),
      py::arg("group") = 0, py::arg("scales") = py::none(), py::arg("zeros") = py::none(),
      py::arg("input_order") = py::none(), py::arg("block_scales") = py::none(), py::arg("output_scales") = py::none(),
      py::arg("mins") = py::none(), py::arg("scale_groups") = 1, py::keep_alive<0, 1>());
  // x [rows, in_features], y [rows, out_features]
  add_method(device, "linear",
             [](TestDevice& d, const WeightOnDevice& weight, const Floats& x, const Floats& y, bool accumulate) {
               // Twice where nothing is added: a call leaves its working memory fit for the next.
               for (int repeat = 0; repeat < (accumulate ? 1 : 2); ++repeat) {
                 d.ops->linear(weight.layer(), x.data(), x.size(0), y.data(), accumulate);
               }
               return y.fetch();
             });
  // Of norms of x [rows, in_features], with `scale` [in_features], and of layer norms where there is a `bias`
  // [in_features]; like [rows, out_features]
  add_method(device, "linear_of_norms",
             [](TestDevice& d, const WeightOnDevice& weight, const Floats& x, const Floats& scale, const Floats& bias,
                float eps, const Floats& like) {
               const AlignedBuffer workspace = float_buffer(*d.ops, x.size(0), x.size(1));
               const NormWeight norm{bias ? NormKind::kLayer : NormKind::kRms, eps, scale, bias};
               d.ops->linear(weight.layer(), LinearInput::normed(norm, x, workspace.as<float>()), x.size(0),
                             like.data(), false);
               return like.fetch();
             });
  // Of the gated activation of x [rows, 2 in_features]; like [rows, out_features]
  add_method(device, "linear_of_gates",
             [](TestDevice& d, const WeightOnDevice& weight, const Floats& x, int activation, const Floats& like) {
               const AlignedBuffer workspace = float_buffer(*d.ops, x.size(0), x.size(1) / 2);
               const auto input = LinearInput::gated(static_cast<Activation>(activation), x, workspace.as<float>());
               d.ops->linear(weight.layer(), input, x.size(0), like.data(), false);
               return like.fetch();
             });
  // x [rows, in_features of gate_up], y [rows, out_features of down]
  add_method(device, "gated_mlp",
             [](TestDevice& d, const WeightOnDevice& gate_up, int activation, const WeightOnDevice& down,
                const Floats& x, const Floats& y, bool accumulate) {
               const int rows = x.size(0);
               const AlignedBuffer projected = float_buffer(*d.ops, rows, gate_up.layer().out_features);
               const AlignedBuffer activated = float_buffer(*d.ops, rows, down.layer().in_features);
               d.ops->gated_mlp({gate_up.layer(), static_cast<Activation>(activation), down.layer(),
                                 projected.as<float>(), activated.as<float>()},
                                x.data(), rows, y, accumulate);
               return y.fetch();
             });
}

}  // namespace turbomind
