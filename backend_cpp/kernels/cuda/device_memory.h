// Device memory, and the workspace of one operator call.
#pragma once

#include <string>

#include "base/aligned_buffer.h"
#include "kernels/cuda/device.h"

namespace turbomind::cuda {

inline size_t free_device_memory() {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for the GPU's free memory");
  return free_bytes;
}

// Throws Error (kUnavailable) when memory runs out.
struct OutOfMemory : Error {
  using Error::Error;
};

// Throws OutOfMemory when memory runs out.
inline AlignedBuffer allocate(size_t bytes) {
  if (bytes == 0) return {};
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // the next call is not to report this one
    throw OutOfMemory(ErrorCode::kUnavailable, "not enough GPU memory: " + std::to_string(bytes >> 20) + " MiB");
  }
  check(error, "allocating memory of the GPU");
  return {data, bytes, [](void* memory, size_t) { cudaFree(memory); }};
}

// ---- scratch memory: within a call; the next one on the same stream uses it again ----

inline constexpr size_t kScratchAlignment = 256;

// Bytes that `Scratch::take` uses up for `count` elements.
template <class T>
size_t scratch_bytes(size_t count) {
  return divide_up(count * sizeof(T), kScratchAlignment) * kScratchAlignment;
}

// Hands out memory from front to back. Passed by value: what a callee takes is free again when it returns.
class Scratch {
 public:
  Scratch() = default;
  Scratch(void* memory, size_t bytes) : next_(static_cast<std::byte*>(memory)), left_(bytes) {}  // memory: aligned

  template <class T>
  T* take(size_t count) {
    const size_t bytes = scratch_bytes<T>(count);
    if (bytes > left_) {
      throw internal_error("an operator needs " + std::to_string(bytes) + " bytes of scratch memory, " +
                           std::to_string(left_) + " are left");
    }
    T* result = reinterpret_cast<T*>(next_);
    next_ += bytes;
    left_ -= bytes;
    return result;
  }

 private:
  std::byte* next_ = nullptr;
  size_t left_ = 0;
};

}  // namespace turbomind::cuda
