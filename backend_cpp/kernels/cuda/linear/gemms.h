// GEMMs of many rows.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/linear/gemm.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/quantize/round_rows.h"
#include "kernels/linear.h"

namespace turbomind::cuda {

// Outputs of a packed weight that are laid out at once: they stay in the second-level cache for their product.
int piece_outputs(const LinearWeight& weight);

// A packed weight as a row-major matrix, for large products. Outputs first_output .. first_output + outputs - 1, which
// are multiples of 16 but for the weight's end.

// wide [outputs, in_features padded to whole groups] of half precision: scale (code - zero) rounded once, without the
// scales of whole outputs.
void dequantize_weight(cudaStream_t stream, const LinearWeight& weight, int first_output, int outputs,
                       uint16_t* dequantized);

// plain [outputs rounded up to 16, padded_inputs]: the codes, of int8 less 128; 0 beyond the weight's inputs and
// outputs. padded_inputs is a multiple of 4. Returns where they are: in `unpacked`, or in a weight that is row-major.
const uint8_t* unpack_weight(cudaStream_t stream, const LinearWeight& weight, int first_output, int outputs,
                             int padded_inputs, uint8_t* unpacked);

// Products of any kind that a library makes, by a plain kernel of ours: for shapes that it has no algorithm for.

// Reference for Gemm::multiply, in float32 sums (int32 of int8); for correctness, not speed: about a tenth of a
// library's.
void reference_gemm(cudaStream_t stream, const GemmCall& call);

// By `gemm`, or, where it has no algorithm for the shape, by reference_gemm.
inline void multiply(cudaStream_t stream, Gemm& gemm, const Scratch& scratch, const GemmCall& call) {
  if (!gemm.multiply(stream, scratch, call)) reference_gemm(stream, call);
}

// Many rows times a packed weight that has scales of whole outputs, which act on the sums of a large product:
//
//   int8     without scales of groups: x is rounded to int8 row by row, products and sums are exact integers
//   float8   without scales of blocks, where the device multiplies float8: x is rounded to float8 row by row
//   others   the weight, and x, are widened or rounded to half precision

// The inputs of products of bytes, padded.
int gemm_inputs(const LinearWeight& weight);

// The scratch memory that a call takes, that of the product included.
size_t scaled_gemm_bytes(const LinearWeight& weight, int rows);

// `result` is float32 or bfloat16.
void scaled_gemm(cudaStream_t stream, const LinearScratch& scratch, const LinearWeight& weight,
                 const LinearInput& input, int rows, const TypedRows& result, bool accumulate);

// Products of float8 weights with many rows whose scales a library's product applies itself: those of blocks of 128
// inputs, and those of whole rows and outputs.
//
// Arithmetic. x is rounded to float8 with a scale of its own for each row and 128 inputs (max |x| / 448), or for each
// row; products are exact, sums float32: y is off by at most 2^-4 sum |x w|, and what x under 2^-16 max |x| adds.

// Rows of x for which a library multiplies float8: multiples of this. The last ones are another product.
inline constexpr int kLibraryRows = 16;

// Which of a weight's scales a library could apply; kNone: not all of them.
GemmScales library_scales(const LinearWeight& weight);

// `scales` is library_scales(weight), and not kNone; the weight is row-major. `rows` is a multiple of kLibraryRows, or
// the result of 16 bits, with room for such a multiple. Takes no more memory than scaled_gemm.
void library_gemm(cudaStream_t stream, const LinearScratch& scratch, const LinearWeight& weight, GemmScales scales,
                  const LinearInput& input, int rows, const TypedRows& result, bool accumulate);

}  // namespace turbomind::cuda
