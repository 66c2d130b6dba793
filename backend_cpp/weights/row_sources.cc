#include "weights/row_sources.h"

#include <memory>
#include <utility>

#include "base/error.h"
#include "weights/checkpoint.h"

namespace turbomind {

namespace {

// Stands for a module's weight while an expression is evaluated: it can be rearranged by whole rows, as codes can, and
// has no numbers.
class ModuleRows final : public QuantizedMatrix {
 public:
  explicit ModuleRows(RowSources::Module module) : module_(std::move(module)) {}

  const RowSources::Module& module() const { return module_; }
  int out_features() const override { return module_.out_features; }
  int in_features() const override { return module_.in_features; }
  void dequantize(int, float*) const override { reject(); }
  std::shared_ptr<const QuantizedMatrix> inputs(const Slice&) const override { reject(); }
  bool packs_with(const QuantizedMatrix&) const override { return false; }
  LinearStorage pack(const std::vector<QuantizedRow>&, bool, const Loop&) const override { reject(); }

 private:
  [[noreturn]] static void reject() { throw invalid_argument("a tensor is not made of whole rows"); }

  RowSources::Module module_;
};

// model.layers.0.mlp.down_proj.weight is the weight of model.layers.0.mlp.down_proj.
std::string layer_of(const std::string& tensor) {
  return tensor.substr(0, tensor.rfind('.'));
}

ManifestValue rows_of(const std::string& tensor, int64_t out_features, int64_t in_features) {
  return ManifestValue(std::make_shared<const ModuleRows>(
      RowSources::Module{layer_of(tensor), static_cast<int>(out_features), static_cast<int>(in_features)}));
}

void append(RowSources& sources, int module, int row) {
  if (!sources.runs.empty()) {
    RowSources::Run& last = sources.runs.back();
    if (last.module == module && last.first + last.count == row) {
      ++last.count;
      return;
    }
  }
  sources.runs.push_back({module, row, 1});
}

}  // namespace

std::vector<ManifestValue> Checkpoint::evaluate_rows(const Json& expression) const {
  const std::string& op = expression.at("op").as_string();
  if (op == "load") {
    const std::string& name = expression.at("name").as_string();
    const CheckpointTensor tensor = loaded(expression);
    if (tensor.shape.size() != 2) throw invalid_argument("tensor " + name + " is no matrix");
    return {rows_of(name, tensor.shape[0], tensor.shape[1])};
  }
  if (op == "quantized" || op == "row_codes") {
    const Json& shape = expression.at("shape");
    const std::string& quantized = expression.at("args").at(0).at("name").as_string();
    return {rows_of(quantized, shape.at(0).as_int(), shape.at(1).as_int())};
  }
  if (op == "scaled") return evaluate_rows(expression.at("args").at(0));
  if (op == "mxfp4") throw invalid_argument("a matrix of 4-bit floats is not made of whole rows");
  std::vector<ManifestValue> all;
  for (const Json& argument : expression.at("args").as_array()) {
    for (ManifestValue& part : evaluate_rows(argument)) all.push_back(std::move(part));
  }
  if (op == "concat") return all;
  return {rearranged(expression, all)};
}

RowSources Checkpoint::row_sources(const std::string& name) const {
  RowSources sources;
  std::vector<const QuantizedMatrix*> known;
  std::vector<ManifestValue> parts;
  try {
    parts = evaluate_rows(manifest_.at("tensors").at(name));
  } catch (const Error&) {
    return sources;
  }
  for (const ManifestValue& part : parts) {
    const auto* rows = dynamic_cast<const ModuleRows*>(part.quantized());
    if (rows == nullptr || part.shape().size() != 2) return {};
    size_t module = 0;
    while (module < known.size() && known[module] != rows) ++module;
    if (module == known.size()) {
      known.push_back(rows);
      sources.modules.push_back(rows->module());
    }
    for (int row = 0; row < static_cast<int>(part.shape()[0]); ++row) {
      append(sources, static_cast<int>(module), part.output(row));
    }
  }
  return sources;
}

}  // namespace turbomind
