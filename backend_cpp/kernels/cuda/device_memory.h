// Memory of the current device.
#pragma once

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

}  // namespace turbomind::cuda
