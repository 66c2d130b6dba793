// Eight activations of a row, rounded to 16 bits.
#pragma once

#include <cstring>

#include "kernels/cuda/device.h"
#include "kernels/linear.h"

namespace turbomind::cuda {

inline constexpr int kChunk = 8;         // inputs of a lane in a slab (linear/weight_slab.cuh)
inline constexpr float kHalfRange = 16;  // by which activations are divided that become half precision

template <class To, class From>
__device__ __forceinline__ To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

// As the operand that fits read_slab.
template <WeightFormat kFormat>
__device__ __forceinline__ uint4 round_chunk(const float (&x)[kChunk]) {
  const auto pair = [&](int i, int j) {
    if constexpr (kFormat == WeightFormat::kBFloat16) {
      return bits_as<uint32_t>(__floats2bfloat162_rn(x[i], x[j]));
    } else {
      return bits_as<uint32_t>(__floats2half2_rn(x[i] * (1 / kHalfRange), x[j] * (1 / kHalfRange)));
    }
  };
  if constexpr (kFormat == WeightFormat::kInt4) return make_uint4(pair(0, 2), pair(4, 6), pair(1, 3), pair(5, 7));
  return make_uint4(pair(0, 1), pair(2, 3), pair(4, 5), pair(6, 7));
}

}  // namespace turbomind::cuda
