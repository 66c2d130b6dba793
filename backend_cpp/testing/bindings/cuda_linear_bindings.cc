#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/cuda/linear/linear.h"
#include "testing/bindings/cuda_bindings.h"
#include "testing/bindings/cuda_weight.h"
#include "testing/bindings/scaled_matrix.h"

namespace py = pybind11;

namespace turbomind::cuda {

TestScratch::TestScratch(size_t bytes) : gemm_(make_gemm()), memory_(allocate(bytes)) {}

LinearScratch TestScratch::view() const {
  return {gemm_.get(), {memory_.as<void>(), memory_.size()}, counters_.data()};
}

WeightOnDevice::WeightOnDevice(const py::array& weight, const OptionalArray<float>& bias,
                               const OptionalArray<uint16_t>& scales, const OptionalArray<uint8_t>& zeros,
                               const OptionalArray<int32_t>& input_order, int format, int out_features, int in_features,
                               int group, const OptionalArray<float>& block_scales,
                               const OptionalArray<float>& output_scales)
    : data_(copy_to_device(weight.data(), static_cast<size_t>(weight.nbytes()))),
      bias_(bias),
      scales_(scales),
      zeros_(zeros),
      input_order_(input_order),
      block_scales_(block_scales),
      output_scales_(output_scales) {
  view_ = {data_.as<void>(),
           static_cast<WeightFormat>(format),
           out_features,
           in_features,
           bias_.data(),
           group,
           reinterpret_cast<const half*>(scales_.data()),
           zeros_.data(),
           input_order_.data(),
           block_scales_.data(),
           output_scales_.data()};
}

void bind_linear(py::module_& m) {
  // The bytes of a weight, row-major or packed; the other arguments as in LinearWeight. Local, since the emulation's
  // and the GPU's modules are loaded together.
  py::class_<WeightOnDevice>(m, "Weight", py::module_local())
      .def(py::init<const py::array&, const OptionalArray<float>&, const OptionalArray<uint16_t>&,
                    const OptionalArray<uint8_t>&, const OptionalArray<int32_t>&, int, int, int, int,
                    const OptionalArray<float>&, const OptionalArray<float>&>(),
           py::arg(), py::arg(), py::arg(), py::arg(), py::arg(), py::arg(), py::arg(), py::arg(), py::arg(),
           py::arg("block_scales") = py::none(), py::arg("output_scales") = py::none());
  // Rounds w [out_features, in_features] and packs it; returns codes and scales.
  m.def("pack_rounded", [](const Array<float>& w, int bits, int group) {
    const PackedShape shape{static_cast<int>(w.shape(0)), static_cast<int>(w.shape(1)), bits, group};
    return pack_tiles(shape, [&](int first, int rows, uint8_t* codes, half* scales) {
      quantize_and_pack_tile(shape, w.data() + static_cast<size_t>(first) * shape.in_features, rows, codes, scales);
    });
  });
  // Packs given codes [out_features, in_features].
  m.def("pack_codes", [](const Array<uint8_t>& w, int bits, int group) {
    const PackedShape shape{static_cast<int>(w.shape(0)), static_cast<int>(w.shape(1)), bits, group};
    const py::tuple codes_and_scales = pack_tiles(shape, [&](int first, int rows, uint8_t* codes, half*) {
      pack_tile(shape, w.data() + static_cast<size_t>(first) * shape.in_features, rows, codes);
    });
    return py::object(codes_and_scales[0]);
  });
  // Packs codes of int8 or float8 [out_features, in_features] with a float32 scale for each block of outputs and
  // inputs; returns codes, the group, scales of blocks (or None) and of outputs.
  m.def("pack_scaled", [](const Array<uint8_t>& codes, bool is_float8, const Array<float>& scales, int block_outputs,
                          int block_inputs) {
    const ScaledMatrix matrix(codes.data(), is_float8, scales.data(), {block_outputs, block_inputs},
                              static_cast<int>(codes.shape(0)), static_cast<int>(codes.shape(1)));
    const LinearStorage& storage = matrix.storage;
    const auto floats = [](const AlignedBuffer& buffer) -> py::object {
      if (buffer.size() == 0) return py::none();
      return Array<float>(static_cast<py::ssize_t>(buffer.size() / sizeof(float)), buffer.as<float>());
    };
    return py::make_tuple(Array<uint8_t>(static_cast<py::ssize_t>(storage.data.size()), storage.data.as<uint8_t>()),
                          storage.view.group, floats(storage.block_scales), floats(storage.output_scales));
  });
  // x [rows, in_features], y [rows, out_features]
  m.def("linear", [](const WeightOnDevice& weight, const Array<float>& x, const Array<float>& y, bool accumulate) {
    const int rows = static_cast<int>(x.shape(0));
    const OnDevice<float> inputs(x);
    const OnDevice<float> outputs(y);
    const TestScratch scratch(linear_scratch_bytes(weight.view(), rows));
    for (int repeat = 0; repeat < (accumulate ? 1 : 2); ++repeat) {  // counters are left as they were found
      linear(nullptr, scratch.view(), weight.view(), inputs.data(), rows, outputs.data(), accumulate);
    }
    return outputs.fetch(y);
  });
  // x [rows, heads, in_features + gap], whose last `gap` are not inputs; y [rows, heads, out_features]
  m.def("head_linear", [](const WeightOnDevice& weight, const Array<float>& x, int gap, const Array<float>& y) {
    const int rows = static_cast<int>(x.shape(0));
    const int heads = static_cast<int>(x.shape(1));
    const auto in = static_cast<size_t>(x.shape(2));
    const auto out = static_cast<size_t>(y.shape(2));
    const OnDevice<float> inputs(x);
    const OnDevice<float> outputs(y);
    const TestScratch scratch(head_linear_scratch_bytes(weight.view(), heads, rows));
    head_linear(nullptr, scratch.view(), weight.view(),
                {inputs.data(), rows, heads * in, heads, in, static_cast<int>(in) - gap},
                {outputs.data(), rows, heads * out, heads, out, static_cast<int>(out)});
    return outputs.fetch(y);
  });
}

}  // namespace turbomind::cuda
