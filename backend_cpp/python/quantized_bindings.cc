// Quantized linear layers of a checkpoint, for models in PyTorch: packed as kernels read them, or as numbers.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "kernels/linear.h"
#include "python/bindings.h"
#include "weights/checkpoint.h"
#include "weights/linear_storage.h"
#include "weights/manifest_value.h"

namespace py = pybind11;

namespace turbomind {

namespace {

// How many there are of a dimension, and which of them are wanted: [begin, end).
using Part = std::tuple<int, int, int>;

Slice slice_of(const Part& part) {
  const auto& [whole, begin, end] = part;
  if (begin < 0 || end > whole || begin >= end) {
    throw invalid_argument("[" + std::to_string(begin) + ", " + std::to_string(end) + ") is not within " +
                           std::to_string(whole));
  }
  return {whole, {begin, end}};
}

// The weight of a layer made of outputs of one or several tensors, with its memory.
class QuantizedLinear {
 public:
  // Codes that do not pack together, or not in these inputs, become bfloat16. `bias` is float32 and kept by the caller.
  QuantizedLinear(const Checkpoint& checkpoint, const std::vector<std::pair<std::string, Part>>& outputs,
                  const Part& inputs, uintptr_t bias) {
    const py::gil_scoped_release unlocked;
    std::vector<ManifestValue> parts;
    for (const auto& [name, rows] : outputs) {
      for (ManifestValue& part : checkpoint.parts(name, {slice_of(rows), slice_of(inputs)})) {
        parts.push_back(std::move(part));
      }
    }
    if (can_pack(parts, true)) {
      storage_ = pack_quantized(parts, true, in_order);
    } else {
      become_numbers(parts, slice_of(inputs).size());
    }
    storage_.view.bias = reinterpret_cast<const float*>(bias);
  }

  const LinearWeight& weight() const { return storage_.view; }
  bool is_packed() const { return storage_.view.is_packed(); }

 private:
  void become_numbers(const std::vector<ManifestValue>& parts, int in_features) {
    int64_t out_features = 0;
    for (const ManifestValue& part : parts) out_features += part.shape()[0];
    storage_.data = AlignedBuffer(static_cast<size_t>(out_features) * static_cast<size_t>(in_features) * sizeof(bf16));
    auto* destination = storage_.data.as<bf16>();
    for (const ManifestValue& part : parts) {
      copy_values(part.numbers(), destination);
      destination += part.shape()[0] * in_features;
    }
    storage_.view = {storage_.data.as<void>(), WeightFormat::kBFloat16, static_cast<int>(out_features), in_features};
  }

  LinearStorage storage_;
};

void read_numbers(const Checkpoint& checkpoint, const std::string& name, int out_features, int in_features,
                  uintptr_t destination) {
  const py::gil_scoped_release unlocked;
  checkpoint.read<float>(name, {out_features, in_features}, reinterpret_cast<float*>(destination));
}

}  // namespace

void bind_quantized(py::module_& m) {
  py::class_<Checkpoint>(m, "QuantizedCheckpoint", py::module_local())
      .def(py::init<const std::string&>(), py::arg("directory"))
      .def("read", &read_numbers, py::arg("name"), py::arg("out_features"), py::arg("in_features"), py::arg("y"));
  py::class_<QuantizedLinear>(m, "QuantizedLinear", py::module_local())
      .def(py::init<const Checkpoint&, const std::vector<std::pair<std::string, Part>>&, const Part&, uintptr_t>(),
           py::arg("checkpoint"), py::arg("outputs"), py::arg("inputs"), py::arg("bias"))
      .def_property_readonly("weight", &QuantizedLinear::weight, py::return_value_policy::reference_internal)
      .def_property_readonly("is_packed", &QuantizedLinear::is_packed);
}

}  // namespace turbomind
