// A device for tests: its operators (device/operators.h) on NumPy arrays. Each call uploads, computes and downloads.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <list>
#include <memory>
#include <tuple>
#include <type_traits>
#include <vector>

#include "device/operators.h"

namespace turbomind {

// First row, rows, position of the first, ids of the blocks.
using Span = std::tuple<int, int, int, std::vector<int32_t>>;

struct TestDevice {
  std::unique_ptr<Operators> ops;
  // Lists of experts stay where they are as long as the operators live.
  std::list<std::vector<ExpertWeight>> experts;
  bool has_tiled_weights = false;
  std::vector<Span> spans;  // of the step
};

// Row-major; no other type is converted.
template <class T>
using Array = pybind11::array_t<T, pybind11::array::c_style>;

template <class T>
int size_of(const Array<T>& array, int dimension) {
  return static_cast<int>(array.shape(dimension));
}

// A copy of an array in the memory of a device, which must outlive it.
template <class T>
class OnDevice {
 public:
  OnDevice(Operators& ops, const Array<T>& array) : OnDevice(ops, array.data(), static_cast<size_t>(array.size())) {
    shape_.assign(array.shape(), array.shape() + array.ndim());
  }
  OnDevice(Operators& ops, const T* elements, size_t count)
      : ops_(&ops), buffer_(ops.allocate(count * sizeof(T))), shape_{static_cast<pybind11::ssize_t>(count)} {
    ops.upload(elements, buffer_.size(), data());
  }

  T* data() const { return buffer_.template as<T>(); }
  operator T*() const { return data(); }
  int size(int dimension) const { return static_cast<int>(shape_.at(static_cast<size_t>(dimension))); }
  size_t bytes() const { return buffer_.size(); }

  Array<T> fetch() const {
    Array<T> array(shape_);
    ops_->download(data(), buffer_.size(), array.mutable_data());
    return array;
  }

 private:
  Operators* ops_;
  AlignedBuffer buffer_;
  std::vector<pybind11::ssize_t> shape_;
};

using Floats = OnDevice<float>;
using Ints = OnDevice<int32_t>;

using DeviceClass = pybind11::class_<TestDevice>;

// Query heads, key heads, key_dim, value_dim, block_len.
using CacheSizes = std::tuple<int, int, int, int, int>;

// Of one layer, with values of 32, 16, 8 or 4 bits.
inline CacheLayout cache_layout(int bits, const CacheSizes& sizes) {
  const auto& [num_heads, num_kv_heads, key_dim, value_dim, block_len] = sizes;
  const CacheType type = bits == 32   ? CacheType::kFloat32
                         : bits == 16 ? CacheType::kBFloat16
                         : bits == 8  ? CacheType::kInt8
                                      : CacheType::kInt4;
  return {type, 1, num_kv_heads, key_dim, value_dim, block_len};
}

// Each adds methods that are named as the operators are.
void bind_heads(pybind11::module_& m);  // of models, on the CPU
void bind_linear(pybind11::module_& m, DeviceClass& device);
void bind_moe(DeviceClass& device);
void bind_ranks(pybind11::module_& m);  // of groups
void bind_host_sampling(pybind11::module_& m);
void bind_operations(DeviceClass& device);

}  // namespace turbomind
