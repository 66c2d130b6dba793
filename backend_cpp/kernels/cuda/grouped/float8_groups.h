// grouped_product for weights of float8. Weights are in tiles (kernels/packed_weight.h): those of some experts at a
// time are laid out row by row, with a scale for each output and 128 inputs, and multiplied.
#pragma once

#include "kernels/cuda/grouped/grouped_product.h"

namespace turbomind::cuda {

size_t float8_groups_bytes(const LinearWeight& weight, int experts, int pairs);

void float8_groups(cudaStream_t stream, Scratch memory, const GroupedKernel& kernel, const GroupedProduct& product);

}  // namespace turbomind::cuda
