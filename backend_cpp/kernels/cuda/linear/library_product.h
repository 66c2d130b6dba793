// Products of float8 weights with many rows whose scales a library's product applies itself: those of blocks of 128
// inputs, and those of whole rows and outputs.
//
// Arithmetic. x is rounded to float8 with a scale of its own for each row and 128 inputs (max |x| / 448), or for each
// row; products are exact, sums float32: y is off by at most 2^-4 sum |x w|, and what x under 2^-16 max |x| adds.
#pragma once

#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/quantize/round_rows.h"

namespace turbomind::cuda {

// Rows of x for which a library multiplies float8: multiples of this. The last ones are another product.
inline constexpr int kLibraryRows = 16;

// Which of a weight's scales a library could apply; kNone: not all of them.
GemmScales library_scales(const LinearWeight& weight);

// `scales` is library_scales(weight), and not kNone. `rows` is a multiple of kLibraryRows, or the result of 16 bits,
// with room for such a multiple. Takes no more memory than scaled_product.
void library_product(cudaStream_t stream, const LinearScratch& scratch, const LinearWeight& weight, GemmScales scales,
                     const LinearInput& input, int rows, const TypedRows& result, bool accumulate);

}  // namespace turbomind::cuda
