#include <string>
#include <type_traits>

#include "kernels/cuda/linear/gemm.h"
#include "testing/cuda_emulated/faults.h"

namespace turbomind::cuda {

namespace {

constexpr const char* kScales = "scales";      // the library that applies them
constexpr const char* kProducts = "products";  // where it is wrong, it has no algorithm for any of them
constexpr int kMaxRejectedRows = 16;           // of int8, by cuBLASLt

// Elements as float32; products of int8 stay exact in it, sums do in `Sum`.
inline float element(int8_t value) {
  return value;
}
template <class T>
float element(T value) {
  return to_float(value);
}

template <class Result, class Sum>
void write(const GemmCall& call, size_t offset, Sum value) {
  auto& y = static_cast<Result*>(call.y)[offset];
  if constexpr (std::is_same_v<Result, Sum>) {
    y = call.accumulates ? y + value : value;
  } else {
    y = from_float<Result>(value);
  }
}

template <class T, class Sum, class Result = Sum>
void multiply_typed(const GemmCall& call) {
  const auto inputs = static_cast<size_t>(call.inputs);
  const auto alpha = static_cast<Sum>(call.alpha);
  for (size_t row = 0; row < static_cast<size_t>(call.rows); ++row) {
    const T* x = static_cast<const T*>(call.x) + row * inputs;
    for (size_t output = 0; output < static_cast<size_t>(call.outputs); ++output) {
      const T* w = static_cast<const T*>(call.w) + output * inputs;
      Sum sum = 0;
      for (size_t i = 0; i < inputs; ++i) sum += static_cast<Sum>(element(x[i]) * element(w[i]));
      write<Result>(call, row * call.y_stride + output, alpha * sum);
    }
  }
}

// The wrong library takes the scales of the first 128 inputs, or of the first output, for all.
template <class Result>
void multiply_scaled(const GemmCall& call, bool is_wrong) {
  const bool has_blocks = call.scales == GemmScales::kBlocks;
  const int block = has_blocks ? 128 : call.inputs;
  for (int row = 0; row < call.rows; ++row) {
    const auto* x = static_cast<const float8*>(call.x) + static_cast<size_t>(row) * call.inputs;
    for (int output = 0; output < call.outputs; ++output) {
      const auto* w = static_cast<const float8*>(call.w) + static_cast<size_t>(output) * call.inputs;
      float sum = 0;
      for (int first = 0; first < call.inputs; first += block) {
        float part = 0;
        for (int i = first; i < first + block; ++i) part += to_float(x[i]) * to_float(w[i]);
        const int scaled_by = is_wrong || !has_blocks ? 0 : first / block;
        const int of_output = is_wrong && !has_blocks ? 0 : output;
        sum += part * call.x_scales[scaled_by * call.rows + row] * call.w_scales[scaled_by * call.outputs + of_output];
      }
      write<Result>(call, row * call.y_stride + output, call.alpha * sum);
    }
  }
}

// cuBLASLt's types of results besides float32; those of int8 are int32.
bool has_result(const GemmCall& call) {
  switch (call.result) {
    case DType::kFloat32:
      return true;
    case DType::kBFloat16:
      return !call.accumulates && (call.type == GemmType::kBFloat16 || call.type == GemmType::kFloat8);
    case DType::kFloat16:
      return !call.accumulates && call.type == GemmType::kFloat16;
  }
  return false;
}

void multiply_now(const GemmCall& call) {
  const bool is_float32 = call.result == DType::kFloat32;
  switch (call.type) {
    case GemmType::kFloat32:
      return multiply_typed<float, float>(call);
    case GemmType::kBFloat16:
      return is_float32 ? multiply_typed<bf16, float>(call) : multiply_typed<bf16, float, bf16>(call);
    case GemmType::kFloat16:
      return is_float32 ? multiply_typed<half, float>(call) : multiply_typed<half, float, half>(call);
    case GemmType::kInt8:
      return multiply_typed<int8_t, int32_t>(call);
    case GemmType::kFloat8:
      return is_float32 ? multiply_typed<float8, float>(call) : multiply_typed<float8, float, bf16>(call);
  }
}

class ReferenceGemm : public Gemm {
 public:
  bool has_float8() const override { return true; }
  bool has_scales(GemmScales scales) const override {
    return scales == GemmScales::kNone || emulated::library(kScales) != emulated::Library::kNone;
  }

  bool multiply(cudaStream_t, Scratch scratch, const GemmCall& call) override {
    if (emulated::library(kProducts) == emulated::Library::kWrong) {
      emulated::count_library_launch(kProducts);
      return false;
    }
    if (call.type == GemmType::kInt8 && call.rows <= kMaxRejectedRows) {
      throw internal_error("cuBLASLt multiplies no " + std::to_string(call.rows) + " rows of int8");
    }
    if (!has_result(call)) throw internal_error("cuBLASLt makes no such results of such operands");
    scratch.take<std::byte>(kGemmScratchBytes);
    if (call.scales != GemmScales::kNone) emulated::count_library_launch(kScales);
    if (emulated::only_checks_launches()) return true;
    if (call.scales == GemmScales::kNone) {
      emulated::submit([call] { multiply_now(call); });
      return true;
    }
    emulated::submit([call, is_wrong = emulated::library(kScales) == emulated::Library::kWrong] {
      call.result == DType::kFloat32 ? multiply_scaled<float>(call, is_wrong) : multiply_scaled<bf16>(call, is_wrong);
    });
    return true;
  }
};

}  // namespace

std::unique_ptr<Gemm> make_gemm() {
  return std::make_unique<ReferenceGemm>();
}

}  // namespace turbomind::cuda
