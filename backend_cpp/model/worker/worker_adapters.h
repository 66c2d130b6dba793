// LoRA adapters for models of workers: checked here, read there.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/json.h"
#include "model/model_runner.h"

namespace turbomind {

// The linear layers of a model that may have an adapter, by a name in which * stands for a number.
class AdaptableLayers {
 public:
  AdaptableLayers() = default;
  // From {name: [out_features, in_features]}.
  explicit AdaptableLayers(const Json& facts);

  // Throws Error that names what of an adapter's directory does not fit.
  std::unique_ptr<AdapterFile> open(const std::string& directory) const;

 private:
  std::map<std::string, std::pair<int64_t, int64_t>> shapes_;
};

// The directory of what AdaptableLayers::open gave.
const std::string& directory_of(const Adapter& adapter);

}  // namespace turbomind
