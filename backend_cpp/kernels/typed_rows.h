// Rows in a device's memory, with the type of their elements: what passes from operator to operator. They are densely
// packed; the call says how many, and how wide. Views that have a shape and strides of their own (HeadsView,
// StridedRows) are of float32. 16 bits are rounded to nearest. Codes of 8 bits, with their scales, stay within an
// operator.
#pragma once

#include <cstddef>

#include "base/error.h"
#include "kernels/types.h"

namespace turbomind {

// Rows that an operator reads or, where Data is void, fills.
template <class Data, class Byte, class Float>
struct RowsOfType {
  RowsOfType() = default;
  RowsOfType(Float* rows) : data(rows) {}
  RowsOfType(Data* rows, DType rows_type) : data(rows), type(rows_type) {}

  // Throws Error where they are of another type.
  Float* floats() const {
    if (type != DType::kFloat32) throw internal_error("an operator that knows float32 alone was given another type");
    return static_cast<Float*>(data);
  }
  // Those from element `first` on, counted through all rows.
  RowsOfType from(size_t first) const { return {static_cast<Byte*>(data) + first * byte_size(type), type}; }

  Data* data = nullptr;
  DType type = DType::kFloat32;
};

using TypedRows = RowsOfType<void, std::byte, float>;
using ConstTypedRows = RowsOfType<const void, const std::byte, const float>;

}  // namespace turbomind
