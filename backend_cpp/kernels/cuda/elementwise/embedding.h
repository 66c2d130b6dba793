// Rows of matrices, copied on a GPU.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/heads_view.h"
#include "kernels/linear.h"

namespace turbomind::cuda {

// y[row] = scale table[tokens[row]]. table [vocab, size] float32, bfloat16 or float16; y [rows, size] float32
void embed(cudaStream_t stream, const LinearWeight& table, const int32_t* tokens, int rows, float scale, float* y);

// y[i] = x[indices[i]]. x [.., size], y [count, size]; not overlapping
void gather_rows(cudaStream_t stream, const float* x, const int32_t* indices, int count, int size, float* y);

// y[indices[i]] = x[i], or, with accumulate, += x[i]; no index twice. x [count, size], y [.., size]; not overlapping
void scatter_rows(cudaStream_t stream, const float* x, const int32_t* indices, int count, int size, float* y,
                  bool accumulate);

// The heads of one matrix into another's; equal in rows, heads and head_dim.
void copy_heads(cudaStream_t stream, const HeadsView& from, const HeadsView& to);

}  // namespace turbomind::cuda
