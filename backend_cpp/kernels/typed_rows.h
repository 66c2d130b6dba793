// Rows in a device's memory, with the type of their elements: what passes from operator to operator.
#pragma once

#include <cstddef>

#include "kernels/types.h"

namespace turbomind {

// Densely packed rows that an operator fills; the call says how many, and how wide. 16 bits are rounded to nearest.
struct TypedRows {
  TypedRows() = default;
  TypedRows(float* rows) : data(rows) {}
  TypedRows(void* rows, DType rows_type) : data(rows), type(rows_type) {}

  float* floats() const { return static_cast<float*>(data); }
  // Those from column `first` on.
  void* from_column(int first) const { return static_cast<std::byte*>(data) + first * byte_size(type); }

  void* data = nullptr;
  DType type = DType::kFloat32;
};

}  // namespace turbomind
