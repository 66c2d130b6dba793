#include "model/worker/worker_adapters.h"

#include <algorithm>

#include "base/error.h"
#include "weights/adapter_checkpoint.h"

namespace turbomind {

namespace {

struct WorkerAdapter final : Adapter {
  explicit WorkerAdapter(std::string from) : directory(std::move(from)) {}
  std::string directory;
};

class WorkerAdapterFile final : public AdapterFile {
 public:
  WorkerAdapterFile(std::string directory, size_t bytes) : directory_(std::move(directory)), bytes_(bytes) {}
  size_t bytes() const override { return bytes_; }
  std::unique_ptr<Adapter> read() const override { return std::make_unique<WorkerAdapter>(directory_); }

 private:
  std::string directory_;
  size_t bytes_;
};

// Each part of a name that is a number becomes *.
std::string pattern_of(const std::string& name) {
  std::string pattern;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    const bool is_number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    pattern += (begin == 0 ? "" : ".") + (is_number ? std::string("*") : part);
    begin = end + 1;
  }
  return pattern;
}

std::string shape_text(int64_t outputs, int64_t inputs) {
  return "[" + std::to_string(outputs) + ", " + std::to_string(inputs) + "]";
}

}  // namespace

AdaptableLayers::AdaptableLayers(const Json& facts) {
  for (const auto& [name, shape] : facts.as_object()) {
    shapes_[std::string(inner_layer(name))] = {shape.at(size_t{0}).as_int(), shape.at(size_t{1}).as_int()};
  }
}

std::unique_ptr<AdapterFile> AdaptableLayers::open(const std::string& directory) const {
  if (shapes_.empty()) {
    throw invalid_argument(
        "the class that runs this model takes no adapters; start the engine with the adapters, so "
        "that one which does is chosen");
  }
  const AdapterCheckpoint checkpoint = AdapterCheckpoint::open(directory);
  size_t bytes = 0;
  for (const auto& [layer, module] : checkpoint.modules()) {
    const std::string& name = module.name;
    const auto known = shapes_.find(pattern_of(layer));
    if (known == shapes_.end()) throw invalid_argument("the model has no linear layer " + name);
    const auto [outputs, inputs] = known->second;
    if (module.up->shape[0] != outputs || module.down->shape[1] != inputs) {
      throw invalid_argument("the adapter of " + name + " is for a layer of shape " +
                             shape_text(module.up->shape[0], module.down->shape[1]) + ", the model's has " +
                             shape_text(outputs, inputs) + ": it was trained for another base");
    }
    bytes += static_cast<size_t>(module.rank) * static_cast<size_t>(outputs + inputs) * sizeof(float);
  }
  return std::make_unique<WorkerAdapterFile>(directory, bytes);
}

const std::string& directory_of(const Adapter& adapter) {
  return static_cast<const WorkerAdapter&>(adapter).directory;
}

}  // namespace turbomind
