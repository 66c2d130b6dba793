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

// Throws Error (kUnavailable) when there is no room.
inline AlignedBuffer allocate(size_t bytes) {
  if (bytes == 0) return {};
  void* data = nullptr;
  if (cudaMalloc(&data, bytes) != cudaSuccess) {
    cudaGetLastError();  // the next call is not to report this one
    throw Error(ErrorCode::kUnavailable, "the GPU has no room for another " + std::to_string(bytes >> 20) + " MiB (" +
                                             std::to_string(free_device_memory() >> 20) +
                                             " MiB are free): lower cache_max_entry_count, session_len, "
                                             "max_prefill_token_num or weight_bits, or free the GPU");
  }
  return {data, bytes, [](void* memory, size_t) { cudaFree(memory); }};
}

}  // namespace turbomind::cuda
