// Strided view of a matrix's heads: head h of row r is the `head_dim` floats from first + r row_stride + h head_stride.
#pragma once

#include <cstddef>

namespace turbomind {

struct HeadsView {
  float* first = nullptr;
  int rows = 0;
  size_t row_stride = 0;
  int heads = 0;
  size_t head_stride = 0;
  int head_dim = 0;

  constexpr float* head(size_t row, int index) const {  // constexpr: callable from CUDA kernels too
    return first + row * row_stride + static_cast<size_t>(index) * head_stride;
  }
};

// Rows of `size` floats as a head each, dense or `stride` floats apart. What is const is only read.
inline HeadsView rows_view(const float* first, int rows, int size, size_t stride = 0) {
  return {const_cast<float*>(first), rows, stride > 0 ? stride : static_cast<size_t>(size), 1, 0, size};
}

}  // namespace turbomind
