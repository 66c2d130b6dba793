// kernels/streams.h on a GPU.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/streams.h"

namespace turbomind::cuda {

void mix_streams(cudaStream_t stream, const StreamShape& shape, const float* factors, const float* x, float* y);
void correct_streams(cudaStream_t stream, const StreamShape& shape, int active, const float* factors, const float* made,
                     float* x);
void match_rms(cudaStream_t stream, const float* like, int rows, int size, float* x);
void cut_rows(cudaStream_t stream, float factor, int rows, int size, size_t stride, float* x);

}  // namespace turbomind::cuda
