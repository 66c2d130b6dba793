// A packed weight as a row-major matrix, for large products. Outputs first_output .. first_output + outputs - 1, which
// are multiples of 16 but for the weight's end.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/linear.h"

namespace turbomind::cuda {

// wide [outputs, in_features padded to whole groups] of half precision: scale (code - zero) rounded once, without the
// scales of whole outputs.
void widen_weight(cudaStream_t stream, const LinearWeight& weight, int first_output, int outputs, uint16_t* wide);

// plain [outputs rounded up to 16, padded_inputs]: the codes, of int8 less 128; 0 beyond the weight's inputs and
// outputs. padded_inputs is a multiple of 4.
void unpack_weight(cudaStream_t stream, const LinearWeight& weight, int first_output, int outputs, int padded_inputs,
                   uint8_t* plain);

}  // namespace turbomind::cuda
