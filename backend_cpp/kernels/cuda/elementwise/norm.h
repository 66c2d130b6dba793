// Norms on a GPU, as kernels/norm.h says.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/norm.h"

namespace turbomind::cuda {

// x, y [rows, size], row-major; y may be x.
void norm(cudaStream_t stream, const NormWeight& weight, const float* x, int rows, int size, float* y);

// Every head by itself, in place, with one weight [head_dim] for all.
void norm_heads(cudaStream_t stream, const NormWeight& weight, const HeadsView& heads);

}  // namespace turbomind::cuda
