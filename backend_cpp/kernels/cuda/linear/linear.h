// y = x W^T + b on a GPU, as kernels/linear.h says but for the arithmetic:
//
//   float32             float32, in any order of summation.
//   bfloat16, float16   x is rounded to the weight's type, for float16 after a division by 16, so that it may be up to
//                       2^20; products are exact, sums float32.
//   int8, int4, float8  x is rounded as for float16, not to 8 bits; codes are exact. Up to 16 rows (32 in ring_linear),
//   and of float8 up to 191, scales
//                       act on sums, so y is off by at most 2^-11 sum |x w| and the rounding of float32 sums (of int8
//                       and int4 those of scale |x| code and scale |x| zero, before these are subtracted); with more
//                       the weight scale (code - zero) is rounded to half precision too. But with many rows and scales
//                       of whole outputs alone x is rounded to 8 bits like the weight, a scale for each row, where the
//                       device multiplies such (int8: any; float8: from compute capability 8.9 on): y is then off by at
//                       most max |x| / 254 sum |w| of int8 and 2^-4 sum |x w| of float8, and what x under 2^-16 max |x|
//                       adds. float8 with scales of 128 inputs is so too where a library's product applies them
//                       (gemms.h).
// Activations under 1e-3 lose precision that half precision has (it is 5e-7 / 2 then, absolutely).
//
// The result of a call is always the same, but a row's may depend on how many there are. Pointers inside a weight are
// device pointers, aligned to 16 bytes.
#pragma once

#include "base/aligned_buffer.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/linear/gemm.h"
#include "kernels/cuda/quantize/round_rows.h"
#include "kernels/head_linear.h"
#include "kernels/linear.h"

namespace turbomind::cuda {

// Context of linear operators on one stream, besides their operands.
struct LinearScratch {
  Gemm* gemm = nullptr;
  Scratch memory;
  int32_t* counters = nullptr;            // of SplitCounters
  GemmScales scales = GemmScales::kNone;  // that `gemm` is to apply where it can
};

// From this many rows on, widening a packed weight for a large product takes less time than it saves.
inline constexpr int kDequantizeRows = 192;

// Counters that blocks which share a sum meet at: zero between calls.
class SplitCounters {
 public:
  // Its users launch on `stream`.
  explicit SplitCounters(cudaStream_t stream);
  int32_t* data() const { return buffer_.as<int32_t>(); }

 private:
  AlignedBuffer buffer_;
};

// The scratch memory that a call with up to `rows` rows takes.
size_t linear_scratch_bytes(const LinearWeight& weight, int rows);

// Whether ring_linear takes a weight, which of 8 bits has to be row-major: groups of whole steps.
bool has_ring(const LinearWeight& weight);

// Types of a call with this many rows. With `scales`, which it is to have, a library has to be able to.
// Rows of results of 16 bits are aligned to 16 bytes.
LinearTypes linear_types(const LinearWeight& weight, int rows, GemmScales scales);

// input [rows, in_features]: rows as they are, or, where it makes_rows, any.
void linear(cudaStream_t stream, const LinearScratch& scratch, const LinearWeight& weight, const LinearInput& input,
            int rows, const TypedRows& result, bool accumulate);

// A linear map of its own for each head, as kernels/head_linear.h says; the weight is not packed.
size_t head_linear_scratch_bytes(const HeadLinear& op);
void head_linear(cudaStream_t stream, const LinearScratch& scratch, const HeadLinear& op);

}  // namespace turbomind::cuda
