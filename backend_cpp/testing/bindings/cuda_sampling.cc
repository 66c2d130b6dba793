#include "kernels/cuda/sampling/sampling.h"
#include "testing/bindings/cuda_internals.h"

namespace turbomind::cuda {

void bind_sampling(DeviceClass& device) {
  device.def("sample", [](TestDevice& d, const pybind11::args& given) {
    CudaOperators& ops = operators_of(d);
    call_with<const SamplingRow*, float*, int, int, int32_t*>(
        d, given, [&](const SamplingRow* sampling, float* logits, int vocab_size, int rows, int32_t* tokens) {
          const Scratch scratch = ops.scratch(sampling_scratch_bytes(vocab_size, rows));
          sample(ops.stream(), scratch, sampling, logits, vocab_size, rows, tokens);
        });
  });
  bind_launch(device, "record_tokens", &record_tokens);
  bind_launch(device, "log_probabilities", &log_probabilities);
}

}  // namespace turbomind::cuda
