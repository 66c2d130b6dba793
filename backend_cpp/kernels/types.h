// Element types of weights and caches, and the CPU instruction sets kernels are compiled for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace turbomind {

enum class DType : uint8_t { kFloat32, kBFloat16 };

inline size_t byte_size(DType type) {
  return type == DType::kFloat32 ? 4 : 2;
}

// The upper half of a float32.
struct bf16 {
  uint16_t bits;
};

inline float to_float(float value) {
  return value;
}
inline float to_float(bf16 value) {
  const uint32_t wide = static_cast<uint32_t>(value.bits) << 16;
  float result;
  std::memcpy(&result, &wide, sizeof(result));
  return result;
}

// Rounds to nearest, ties to even; NaN stays NaN.
inline bf16 to_bf16(float value) {
  uint32_t wide;
  std::memcpy(&wide, &value, sizeof(wide));
  if ((wide & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<uint16_t>((wide >> 16) | 0x40u)};
  return {static_cast<uint16_t>((wide + 0x7FFFu + ((wide >> 16) & 1u)) >> 16)};
}

template <class T>
T from_float(float value);
template <>
inline float from_float<float>(float value) {
  return value;
}
template <>
inline bf16 from_float<bf16>(float value) {
  return to_bf16(value);
}

}  // namespace turbomind
