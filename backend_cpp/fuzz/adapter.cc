// A low-rank adapter: refused, or its modules are pairs of matrices of one rank. Input: adapter_config.json, a 0 byte,
// the header of adapter_model.safetensors, a 0 byte, the tensors' bytes.
#include <cmath>

#include "fuzz/fuzz.h"
#include "weights/adapter_checkpoint.h"

namespace turbomind {

FUZZ_TARGET(adapter) {
  const std::string_view config = input.substr(0, input.find('\0'));
  const std::string_view tensors = input.substr(std::min(input.size(), config.size() + 1));
  const fuzz::ScratchFile file(fuzz::safetensors(tensors));
  fuzz::is_accepted([&] {
    const AdapterCheckpoint adapter(SafetensorsFile(file.path()), Json::parse(config));
    PROMISE(!adapter.modules().empty());
    for (const auto& [name, module] : adapter.modules()) {
      PROMISE(module.rank > 0 && std::isfinite(module.scale));
      PROMISE(module.down->shape[0] == module.rank && module.up->shape[1] == module.rank);
    }
  });
}

}  // namespace turbomind
