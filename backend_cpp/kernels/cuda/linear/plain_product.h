// Products of any kind that a library makes, by a plain kernel of ours: for shapes that it has no algorithm for.
#pragma once

#include "kernels/cuda/linear/gemm.h"

namespace turbomind::cuda {

// What Gemm::multiply does, in float32 sums (int32 of int8); for correctness, not speed: about a tenth of a library's.
void plain_product(cudaStream_t stream, const GemmCall& call);

// By `gemm`, or, where it has no algorithm for the shape, by plain_product.
inline void multiply(cudaStream_t stream, Gemm& gemm, const Scratch& scratch, const GemmCall& call) {
  if (!gemm.multiply(stream, scratch, call)) plain_product(stream, call);
}

}  // namespace turbomind::cuda
