// A linear map of its own for each head: y[h] = x[h] W_h^T.
//
//   x [rows, heads, in_features]     float32; a row starts x_stride floats after the one before, a head head_stride
//   y [rows, heads, out_features]    likewise
//
// W_h are rows [h out_features, (h + 1) out_features) of a float32 or bfloat16 weight without bias. Each element is
// summed as `linear` does, independent of rows and threads.
#pragma once

#include <cstddef>

#include "base/thread_pool.h"
#include "kernels/linear.h"

namespace turbomind {

// Where the heads of rows lie; strides in floats.
template <class T>
struct HeadRows {
  T* data;
  size_t row_stride;
  size_t head_stride;

  T* at(int row, int head) const { return data + row * row_stride + head * head_stride; }
};

void head_linear(ThreadPool& pool, const LinearWeight& weight, int heads, const HeadRows<const float>& x, int rows,
                 const HeadRows<float>& y);

}  // namespace turbomind
