// Element types of weights, caches and activations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/error.h"

namespace turbomind {

enum class DType : uint8_t { kFloat32, kBFloat16, kFloat16 };

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
  const uint32_t word = static_cast<uint32_t>(value.bits) << 16;
  float result;
  std::memcpy(&result, &word, sizeof(result));
  return result;
}

// Rounds to nearest, ties to even; NaN stays NaN.
inline bf16 to_bf16(float value) {
  uint32_t word;
  std::memcpy(&word, &value, sizeof(word));
  if ((word & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<uint16_t>((word >> 16) | 0x40u)};
  return {static_cast<uint16_t>((word + 0x7FFFu + ((word >> 16) & 1u)) >> 16)};
}

// IEEE 754 half precision.
struct half {
  uint16_t bits;
};

inline float to_float(half value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1Fu;
  const uint32_t mantissa = value.bits & 0x3FFu;
  float magnitude;
  if (exponent == 0) {
    magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  } else {
    const uint32_t word = ((exponent == 31 ? 255u : exponent + 112u) << 23) | (mantissa << 13);
    std::memcpy(&magnitude, &word, sizeof(word));
  }
  return sign != 0 ? -magnitude : magnitude;
}

// Rounds to nearest, ties to even; beyond the largest half it is infinity; NaN stays NaN.
inline half to_half(float value) {
  uint32_t word;
  std::memcpy(&word, &value, sizeof(word));
  const auto sign = static_cast<uint16_t>((word >> 16) & 0x8000u);
  const uint32_t magnitude = word & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return {static_cast<uint16_t>(sign | 0x7E00u)};
  if (magnitude >= 0x477FF000u) return {static_cast<uint16_t>(sign | 0x7C00u)};
  if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 aligns the mantissa so that the hardware rounds it
    float shifted;
    std::memcpy(&shifted, &magnitude, sizeof(shifted));
    shifted += 0.5f;
    uint32_t bits;
    std::memcpy(&bits, &shifted, sizeof(bits));
    return {static_cast<uint16_t>(sign | (bits - 0x3F000000u))};
  }
  const uint32_t rounded = magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u);
  return {static_cast<uint16_t>(sign | (rounded >> 13))};
}

// Eight bits: sign, 4 of exponent (bias 7), 3 of mantissa; subnormals, but no infinity: 0x7F and 0xFF are NaN
// ("E4M3", Micikevicius et al., 2022, arXiv 2209.05433; torch.float8_e4m3fn).
struct float8 {
  uint8_t bits;

  bool is_nan() const { return (bits & 0x7Fu) == 0x7Fu; }
};

inline constexpr float kLargestFloat8 = 448;

// The same bits, sign apart, are those of a half 2^-8 as large.
inline float to_float(float8 value) {
  if (value.is_nan()) return to_float(half{0x7E00});
  return 256 * to_float(half{static_cast<uint16_t>((value.bits & 0x80u) << 8 | (value.bits & 0x7Fu) << 7)});
}

// Rounds to nearest, ties to even; beyond +-448 it is +-448; NaN stays NaN.
inline float8 to_float8(float value) {
  uint32_t word;
  std::memcpy(&word, &value, sizeof(word));
  const auto sign = static_cast<uint8_t>(word >> 24 & 0x80u);
  uint32_t magnitude = word & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return {static_cast<uint8_t>(sign | 0x7Fu)};
  if (magnitude >= 0x43E00000u) return {static_cast<uint8_t>(sign | 0x7Eu)};
  if (magnitude < 0x3C800000u) {  // below 2^-6: adding 2^14 aligns the mantissa so that the hardware rounds it
    float shifted;
    std::memcpy(&shifted, &magnitude, sizeof(shifted));
    shifted += 16384.0f;
    uint32_t bits;
    std::memcpy(&bits, &shifted, sizeof(bits));
    return {static_cast<uint8_t>(sign | (bits - 0x46800000u))};
  }
  magnitude = magnitude - 0x3C000000u + 0x7FFFFu + ((magnitude >> 20) & 1u);
  return {static_cast<uint8_t>(sign | magnitude >> 20)};
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
template <>
inline half from_float<half>(float value) {
  return to_half(value);
}

// Rows in a device's memory, with the type of their elements: what passes from operator to operator. They are densely
// packed; the call says how many, and how wide. Views that have a shape and strides of their own (HeadsView,
// StridedRows) are of float32. 16 bits are rounded to nearest. Codes of 8 bits, with their scales, stay within an
// operator. An operator reads them or, where Data is void, fills them.
template <class Data, class Byte, class Float>
struct RowsOfType {
  RowsOfType() = default;
  RowsOfType(Float* rows) : data(rows) {}
  RowsOfType(Data* rows, DType rows_type) : data(rows), type(rows_type) {}

  // Throws Error where they are of another type.
  Float* floats() const {
    if (type != DType::kFloat32) throw internal_error("an operator that knows float32 alone was given another type");
    return static_cast<Float*>(data);
  }
  // Those from element `first` on, counted through all rows.
  RowsOfType from(size_t first) const { return {static_cast<Byte*>(data) + first * byte_size(type), type}; }

  Data* data = nullptr;
  DType type = DType::kFloat32;
};

using TypedRows = RowsOfType<void, std::byte, float>;
using ConstTypedRows = RowsOfType<const void, const std::byte, const float>;

}  // namespace turbomind
