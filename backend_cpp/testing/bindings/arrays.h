// NumPy arrays in a device's memory, for tests: they are copied there, operators run, and results come back.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "device/operators.h"

namespace turbomind {

// Row-major; no other type is converted.
template <class T>
using Array = pybind11::array_t<T, pybind11::array::c_style>;

template <class T>
using OptionalArray = std::optional<Array<T>>;

// A copy of an array on a device, which must outlive it; where there is no array, null.
template <class T>
class OnDevice {
 public:
  OnDevice(Operators& ops, const Array<T>& array) : OnDevice(ops, array.data(), static_cast<size_t>(array.size())) {}
  OnDevice(Operators& ops, const OptionalArray<T>& array) : ops_(&ops) {
    if (array) *this = OnDevice(ops, *array);
  }
  OnDevice(Operators& ops, const T* elements, size_t count) : ops_(&ops), buffer_(ops.allocate(count * sizeof(T))) {
    ops.upload(elements, buffer_.size(), data());
  }
  T* data() const { return buffer_.template as<T>(); }

  // `like` gives the shape.
  Array<T> fetch(const Array<T>& like) const {
    Array<T> result(std::vector<pybind11::ssize_t>(like.shape(), like.shape() + like.ndim()));
    ops_->download(data(), buffer_.size(), result.mutable_data());
    return result;
  }

 private:
  Operators* ops_;
  AlignedBuffer buffer_;
};

template <class T>
int size_of(const Array<T>& array, int dimension) {
  return static_cast<int>(array.shape(dimension));
}

// Heads that are in rows of `width` elements from element `first` on, densely packed.
inline HeadsView heads_view(float* data, int rows, size_t width, int first, int heads, int head_dim) {
  return {data + first, rows, width, heads, static_cast<size_t>(head_dim), head_dim};
}

}  // namespace turbomind
