// Interface of large GEMMs (cuBLASLt). One object serves one stream at a time.
#pragma once

#include <memory>

#include "kernels/cuda/device.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/types.h"

namespace turbomind::cuda {

// Of x and w.
enum class GemmType : uint8_t { kFloat32, kBFloat16, kFloat16, kInt8, kFloat8 };

// Of float8 alone: what elements of x and w are multiplied with, besides alpha.
//   kRows     a scale for each row of x [rows] and of w [outputs]
//   kBlocks   a scale for each row and 128 inputs of x [inputs / 128, rows] and of w [inputs / 128, outputs]; rows:
//             a multiple of 4, inputs: of 128
enum class GemmScales : uint8_t { kNone, kRows, kBlocks };

// y = alpha x w^T, or y += where it accumulates; sums are float32, products exact (no TF32).
//   x [rows, inputs], w [outputs, inputs]   `type`, row-major without gaps, aligned to 16 bytes
//   y [rows, outputs]                       float32, rows `y_stride` elements apart; or, where nothing accumulates,
//                                           rounded to the type of x where that has 16 bits, to bfloat16 of float8
// Of int8, y is int32 and exact, alpha 1, and nothing accumulates. Of int8 and float8, outputs and inputs are multiples
// of 16.
struct GemmCall {
  GemmType type = GemmType::kFloat32;
  const void* x = nullptr;
  const void* w = nullptr;
  void* y = nullptr;
  int rows = 0;
  int outputs = 0;
  int inputs = 0;
  size_t y_stride = 0;
  float alpha = 1;
  bool accumulates = false;
  DType result = DType::kFloat32;  // of y
  GemmScales scales = GemmScales::kNone;
  const float* x_scales = nullptr;  // aligned to 16 bytes, as w_scales is
  const float* w_scales = nullptr;
};

// Bytes of scratch memory a product takes.
inline constexpr size_t kGemmScratchBytes = size_t{32} << 20;

class Gemm {
 public:
  virtual ~Gemm() = default;
  // Whether the device multiplies float8: from compute capability 8.9 on.
  virtual bool has_float8() const = 0;
  // Whether it applies such scales itself.
  virtual bool has_scales(GemmScales scales) const = 0;
  // False, and nothing is launched: it has no algorithm for the shape (gemms.h).
  virtual bool multiply(cudaStream_t stream, Scratch scratch, const GemmCall& call) = 0;
};

// cuBLASLt on the current device; in the emulation, a loop.
std::unique_ptr<Gemm> make_gemm();

}  // namespace turbomind::cuda
