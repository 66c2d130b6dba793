// What is between the projections of an MLP, on a GPU; as kernels/activation.h says. NaN stays NaN.
#pragma once

#include "kernels/activation.h"
#include "kernels/cuda/device.h"

namespace turbomind::cuda {

// y = act(gate) * up; the first half of a row of gate_up [rows, 2 size] is gate, the second up. y [rows, size]
void activate_gated(cudaStream_t stream, Activation activation, const float* gate_up, int rows, int size, float* y);

// y = act(x); x, y [rows, size], y may be x
void activate(cudaStream_t stream, Activation activation, const float* x, int rows, int size, float* y);

// y = xIELU(x); x, y [rows, size], y may be x
void xielu(cudaStream_t stream, const XieluFactors& factors, const float* x, int rows, int size, float* y);

// x = softcap tanh(scale x / softcap), or scale x where softcap is 0. x [rows, size]
void scale_and_cap(cudaStream_t stream, float scale, float softcap, int rows, int size, float* x);

// y += scale x; both [rows, size]
void add_scaled(cudaStream_t stream, float scale, const float* x, int rows, int size, float* y);

// x = 1 / (1 + exp(-x)). x [count]
void sigmoid(cudaStream_t stream, int count, float* x);

// x = min(max(x, -limit), limit). x [rows, size]
void clamp(cudaStream_t stream, float limit, int rows, int size, float* x);

}  // namespace turbomind::cuda
