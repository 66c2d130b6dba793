// Rotary position embedding on a GPU, in place; as kernels/rope.h says.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/rope.h"

namespace turbomind::cuda {

// cosine, sine [rows, pairs]
void rope_table(cudaStream_t stream, const RopeAngles& angles, int rows, float* cosine, float* sine);

// factors [rows], or null: 1
void rope(cudaStream_t stream, const RopeTable& table, const HeadsView& heads, const float* factors);

}  // namespace turbomind::cuda
