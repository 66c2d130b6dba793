// Shims for FlashInfer's headers (Apache-2.0; wheel flashinfer-python, requirements/cuda-libraries.txt) to compile
// without the rest of its wheel. Comes before them.
#pragma once

// In the place of flashinfer/fastdiv.cuh, which wants a CCCL newer than that of CUDA 13.0: a division by a number that
// is known at run time alone. Exact for n < 2^31 (Granlund and Montgomery, 1994): m = ceil(2^(31 + l) / d) fits 32
// bits.
#define FLASHINFER_FASTDIV_CUH_
#include <cstdint>

namespace flashinfer {

struct uint_fastdiv {
  uint32_t divisor = 1;
  uint32_t factor = 0;  // 0: the divisor is 1
  uint32_t shift = 0;

  __host__ __device__ uint_fastdiv() {}
  __host__ __device__ uint_fastdiv(uint32_t d) : divisor(d) {
    if (d <= 1) return;
    while ((uint64_t{1} << shift) < d) ++shift;
    factor = static_cast<uint32_t>(((uint64_t{1} << (31 + shift)) + d - 1) / d);
    shift -= 1;
  }
  __host__ __device__ __forceinline__ operator unsigned int() const { return divisor; }
  __host__ __device__ __forceinline__ void divmod(uint32_t n, uint32_t& quotient, uint32_t& rest) const {
    quotient = factor == 0 ? n : static_cast<uint32_t>(uint64_t{n} * factor >> 32) >> shift;
    rest = n - quotient * divisor;
  }
};

__host__ __device__ __forceinline__ uint32_t operator/(uint32_t n, const uint_fastdiv& by) {
  uint32_t quotient;
  uint32_t rest;
  by.divmod(n, quotient, rest);
  return quotient;
}

__host__ __device__ __forceinline__ uint32_t operator%(uint32_t n, const uint_fastdiv& by) {
  uint32_t quotient;
  uint32_t rest;
  by.divmod(n, quotient, rest);
  return rest;
}

}  // namespace flashinfer

// In the place of flashinfer/cutlass_utils.cuh, which wants the headers of cuRAND for CUTLASS's tests. What attention
// needs of it are CUTLASS's own headers, which it includes.
#define FLASHINFER_CUTLASS_UTILS_CUH_
