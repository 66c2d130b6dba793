// Row readers of kernels that round rows.
#pragma once

#include <cstring>
#include <type_traits>

#include "kernels/cuda/device.h"
#include "kernels/cuda/quantize/round_rows.h"
#include "kernels/cuda/upcast.cuh"
#include "kernels/linear.h"

namespace turbomind::cuda {

// Eight activations of a row, rounded to 16 bits.
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

// Neighbouring inputs of one head, four or eight from `input` on; 0 beyond the last.
template <class Element, int kCount>
__device__ __forceinline__ void read_chunk(const RowsToRound& from, const Element* head, int input,
                                           float (&values)[kCount]) {
  using Vector = std::conditional_t<kCount * sizeof(Element) < sizeof(uint4), uint2, uint4>;
  const Element* x = head + input;
  if (from.input_order == nullptr && input + kCount <= from.inputs &&
      reinterpret_cast<uintptr_t>(x) % sizeof(Vector) == 0) {
    constexpr int kWidth = sizeof(Vector) / sizeof(Element);
#pragma unroll
    for (int first = 0; first < kCount; first += kWidth) {
      const Vector vector = *reinterpret_cast<const Vector*>(x + first);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values[first + i] = upcast(reinterpret_cast<const Element*>(&vector)[i]);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const bool is_there = input + i < from.inputs;
    values[i] = !is_there ? 0.0f : upcast(from.input_order != nullptr ? head[from.input_order[input + i]] : x[i]);
  }
}

// The same of x of any type; the head begins `first` elements after x.
template <int kCount>
__device__ __forceinline__ void read_chunk(const RowsToRound& from, size_t first, int input, float (&values)[kCount]) {
  switch (from.type) {
    case DType::kFloat32:
      return read_chunk(from, static_cast<const float*>(from.x) + first, input, values);
    case DType::kBFloat16:
      return read_chunk(from, static_cast<const bf16*>(from.x) + first, input, values);
    case DType::kFloat16:
      read_chunk(from, static_cast<const half*>(from.x) + first, input, values);
#pragma unroll
      for (float& value : values) value *= kHalfRange;
  }
}

}  // namespace turbomind::cuda
