#include "kernels/cuda/emulated/runtime.h"

#include <cstdlib>
#include <cstring>

namespace {

constexpr size_t kAlignment = 256;  // of what cudaMalloc returns

}  // namespace

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  // Not rounded up, so that AddressSanitizer sees what lies behind.
  if (posix_memalign(memory, kAlignment, bytes) != 0) return cudaErrorMemoryAllocation;
  std::memset(*memory, 0xFF, bytes);
  return cudaSuccess;
}

cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  return cudaMalloc(memory, bytes);
}

cudaError_t cudaFreeHost(void* memory) {
  return cudaFree(memory);
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpy(to, from, bytes, kind);
}

cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  if (bytes > 0) std::memset(memory, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t) {
  return cudaMemset(memory, value, bytes);
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = *total_bytes = size_t{1} << 30;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = nullptr;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t) {
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = nullptr;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t) {
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t) {
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
  }
  return "unknown error";
}
