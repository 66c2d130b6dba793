// A packed weight as a matrix of half precision.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/linear.h"

namespace turbomind::cuda {

// Outputs first_output .. first_output + outputs - 1, both multiples of 16 but for the weight's end, as
// wide [outputs, in_features padded to whole groups], scale (code - zero) rounded once.
void widen_weight(cudaStream_t stream, const LinearWeight& weight, int first_output, int outputs, uint16_t* wide);

}  // namespace turbomind::cuda
