// The header of a safetensors file: refused, or its tensors are within the file. Input: the header, a 0 byte, the
// tensors' bytes.
#include "fuzz/fuzz.h"
#include "weights/checkpoint.h"

namespace turbomind {

FUZZ_TARGET(safetensors) {
  const fuzz::ScratchFile file(fuzz::safetensors(input));
  fuzz::is_accepted([&] {
    const SafetensorsFile tensors(file.path());
    const CheckpointTensor& tensor = tensors.tensor("x");
    unsigned sum = 0;  // reads every byte, which sanitizers watch
    for (size_t i = 0; i < tensor.bytes; ++i) sum += std::to_integer<unsigned>(tensor.data[i]);
    volatile unsigned sink = sum;
    (void)sink;
    const size_t size = type_bytes(tensor.dtype);
    PROMISE(size == 0 || tensor.bytes == size * static_cast<size_t>(element_count(tensor.shape)));
  });
  // The whole input as a file, whatever length it says its header has.
  const fuzz::ScratchFile raw(input);
  fuzz::is_accepted([&] { SafetensorsFile(raw.path()); });
}

}  // namespace turbomind
