// Low-rank adapters on a GPU, as kernels/lora.h says; `rows.adapters`, and all that it leads to, is device memory.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/lora.h"

namespace turbomind::cuda {

void lora_shrink(cudaStream_t stream, const LoraRows& rows, const float* x, int in_features, float* shrunk);
void lora_expand(cudaStream_t stream, const LoraRows& rows, const float* shrunk, int out_features, float* y);

}  // namespace turbomind::cuda
