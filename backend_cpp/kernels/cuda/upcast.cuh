// Stored numbers as float32, in kernels.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/types.h"

namespace turbomind::cuda {

__device__ __forceinline__ float upcast(float value) {
  return value;
}
__device__ __forceinline__ float upcast(bf16 value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}
__device__ __forceinline__ float upcast(half value) {
  return __half2float(__ushort_as_half(value.bits));
}

}  // namespace turbomind::cuda
