#include "kernels/cuda/gemm.h"

namespace turbomind::cuda {

namespace {

template <class T>
void multiply_typed(const GemmCall& call) {
  const auto inputs = static_cast<size_t>(call.inputs);
  for (size_t row = 0; row < static_cast<size_t>(call.rows); ++row) {
    const T* x = static_cast<const T*>(call.x) + row * inputs;
    for (size_t output = 0; output < static_cast<size_t>(call.outputs); ++output) {
      const T* w = static_cast<const T*>(call.w) + output * inputs;
      float sum = 0;
      for (size_t i = 0; i < inputs; ++i) sum += to_float(x[i]) * to_float(w[i]);
      float& y = call.y[row * call.y_stride + output];
      y = call.accumulates ? y + call.alpha * sum : call.alpha * sum;
    }
  }
}

class PlainGemm : public Gemm {
 public:
  void multiply(cudaStream_t, Scratch scratch, const GemmCall& call) override {
    scratch.take<std::byte>(kGemmScratchBytes);
    switch (call.type) {
      case DType::kFloat32:
        return multiply_typed<float>(call);
      case DType::kBFloat16:
        return multiply_typed<bf16>(call);
      case DType::kFloat16:
        return multiply_typed<half>(call);
    }
  }
};

}  // namespace

std::unique_ptr<Gemm> make_gemm() {
  return std::make_unique<PlainGemm>();
}

}  // namespace turbomind::cuda
