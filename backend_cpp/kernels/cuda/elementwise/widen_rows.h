// Rows of bfloat16 as float32.
#pragma once

#include "kernels/cuda/device.h"

namespace turbomind::cuda {

// wide [rows, width]; width is a multiple of 4. Rows from *filled (the device's) on are not written; null: all are.
void widen_rows(cudaStream_t stream, const uint16_t* rounded, int rows, int width, const int32_t* filled, float* wide);

}  // namespace turbomind::cuda
