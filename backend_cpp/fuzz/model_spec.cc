// A model's description: refused, or one that has an entry for each of its layers.
#include "model/spec/model_spec.h"

#include "fuzz/fuzz.h"

namespace turbomind {

FUZZ_TARGET(model_spec) {
  const fuzz::ScratchFile file(input);
  fuzz::is_accepted([&] {
    const ModelSpec spec = read_model_spec(file.path());
    PROMISE(spec.layer_ropes.size() == static_cast<size_t>(spec.num_layers));
    for (const int rope : spec.layer_ropes) PROMISE(rope >= -1 && rope < static_cast<int>(spec.ropes.size()));
  });
}

}  // namespace turbomind
