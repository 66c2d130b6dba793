// Many rows times a packed weight that has scales of whole outputs, which act on the sums of a large product:
//
//   int8     without scales of groups: x is rounded to int8 row by row, products and sums are exact integers
//   float8   without scales of blocks, where the device multiplies float8: x is rounded to float8 row by row
//   others   the weight, and x, are widened or rounded to half precision
#pragma once

#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/quantize/round_rows.h"

namespace turbomind::cuda {

// The inputs of products of bytes, padded.
int product_inputs(const LinearWeight& weight);

// The scratch memory that a call takes, that of the product included.
size_t scaled_product_bytes(const LinearWeight& weight, int rows);

// `result` is float32 or bfloat16.
void scaled_product(cudaStream_t stream, const LinearScratch& scratch, const LinearWeight& weight,
                    const LinearInput& input, int rows, const TypedRows& result, bool accumulate);

}  // namespace turbomind::cuda
