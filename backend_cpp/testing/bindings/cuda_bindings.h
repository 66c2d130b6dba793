// CUDA operators on NumPy arrays, for tests: arrays are copied to the device, the operator runs, its results come back.
// Compiled against CUDA as tests/kernels/_cuda_device and against the emulation as tests/kernels/_cuda_emulated.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "kernels/cuda/device_memory.h"

namespace turbomind::cuda {

// Row-major; no other type is converted.
template <class T>
using Array = pybind11::array_t<T, pybind11::array::c_style>;

template <class T>
using OptionalArray = std::optional<Array<T>>;

inline AlignedBuffer copy_to_device(const void* source, size_t bytes) {
  AlignedBuffer there = allocate(bytes);
  check(cudaMemcpy(there.as<void>(), source, bytes, cudaMemcpyHostToDevice), "copying to the device");
  return there;
}

// A copy of an array on the device; where there is none, null.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const Array<T>& array)
      : buffer_(copy_to_device(array.data(), static_cast<size_t>(array.nbytes()))) {}
  explicit OnDevice(const OptionalArray<T>& array) {
    if (array) *this = OnDevice(*array);
  }
  T* data() const { return buffer_.template as<T>(); }

  // Waits for the device. `like` gives the shape.
  Array<T> fetch(const Array<T>& like) const {
    check(cudaDeviceSynchronize(), "running an operator");
    Array<T> result(std::vector<pybind11::ssize_t>(like.shape(), like.shape() + like.ndim()));
    check(cudaMemcpy(result.mutable_data(), data(), buffer_.size(), cudaMemcpyDeviceToHost), "copying from the device");
    return result;
  }

 private:
  AlignedBuffer buffer_;
};

void bind_attention(pybind11::module_& m);
void bind_elementwise(pybind11::module_& m);
void bind_linear(pybind11::module_& m);
void bind_moe(pybind11::module_& m);
void bind_ranks(pybind11::module_& m);
void bind_sampling(pybind11::module_& m);
void bind_probes(pybind11::module_& m);
void bind_faults(pybind11::module_& m);  // of the emulation

}  // namespace turbomind::cuda
