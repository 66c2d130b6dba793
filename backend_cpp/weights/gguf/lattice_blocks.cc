#include "weights/gguf/lattice_blocks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/types.h"
#include "weights/gguf/lattices.h"

namespace turbomind {

namespace {

constexpr int kZero = 128;
constexpr std::array<int, 4> kTwoBitSteps = {8, 25, 43, 0};
constexpr std::array<int, 8> kThreeBitSteps = {4, 12, 20, 28, 36, 44, 52, 62};

template <class T>
T at(const std::byte* bytes, int index = 0) {
  T value;
  std::memcpy(&value, bytes + static_cast<std::ptrdiff_t>(index) * static_cast<std::ptrdiff_t>(sizeof(T)), sizeof(T));
  return value;
}

float half_at(const std::byte* bytes) {
  return to_float(at<half>(bytes));
}

uint8_t byte_at(const std::byte* bytes, int index) {
  return static_cast<uint8_t>(bytes[index]);
}

uint8_t half_byte(const std::byte* bytes, int index) {
  return byte_at(bytes, index / 2) >> (index % 2 * 4) & 15u;
}

// Signs of eight numbers in seven bits: the eighth makes their number even.
uint8_t all_signs(uint32_t seven) {
  const auto low = static_cast<uint8_t>(seven & 127u);
  return static_cast<uint8_t>(low | (std::popcount(low) & 1) << 7);
}

void set_signed(int magnitude, bool is_negative, uint8_t& q) {
  q = static_cast<uint8_t>(kZero + (is_negative ? -magnitude : magnitude));
}

// Eight numbers of a point of steps of two bits.
void point_of_eight(uint16_t point, uint8_t signs, uint8_t* quantized) {
  for (int i = 0; i < 8; ++i) set_signed(kTwoBitSteps[point >> (2 * i) & 3u], (signs >> i & 1u) != 0, quantized[i]);
}

// Four numbers of a point of steps of three bits; signs in the low bits.
template <class Magnitude>
void point_of_four(uint16_t point, int signs, Magnitude magnitude, uint8_t* quantized) {
  for (int i = 0; i < 4; ++i) set_signed(magnitude(point >> (3 * i) & 7u), (signs >> i & 1) != 0, quantized[i]);
}

// Eight numbers of -1, 0, 1 and an eighth more or less: in eighths.
void ternary_point(uint16_t point, bool is_less, uint8_t* quantized) {
  for (int i = 0; i < 8; ++i) {
    const int step = static_cast<int>(point >> (2 * i) & 3u) - 1;
    quantized[i] = static_cast<uint8_t>(kZero + 8 * step + (is_less ? -1 : 1));
  }
}

int odd_step(unsigned step) {
  return static_cast<int>(2 * step + 1);
}

constexpr std::array<int, 8> kHalves = {0, 1, 2, 3, 4, 6, 8, 12};  // of the 4-bit floats

}  // namespace

void iq2_xxs(const std::byte* block, uint8_t* quantized, float* scales, float*) {
  for (int g = 0; g < 8; ++g) {
    const std::byte* points = block + 2 + static_cast<std::ptrdiff_t>(8) * g;
    const auto rest = at<uint32_t>(points, 1);
    scales[g] = half_at(block) * (0.5f + static_cast<float>(rest >> 28)) * 0.25f;
    for (int p = 0; p < 4; ++p) {
      point_of_eight(lattices::kIq2Xxs[byte_at(points, p)], all_signs(rest >> (7 * p)), quantized + 32 * g + 8 * p);
    }
  }
}

void iq2_xs(const std::byte* block, uint8_t* quantized, float* scales, float*) {
  for (int g = 0; g < 16; ++g) {
    scales[g] = half_at(block) * (0.5f + static_cast<float>(half_byte(block + 66, g))) * 0.25f;
  }
  for (int p = 0; p < 32; ++p) {
    const auto point = at<uint16_t>(block + 2, p);
    point_of_eight(lattices::kIq2Xs[point & 511u], all_signs(point >> 9),
                   quantized + static_cast<std::ptrdiff_t>(8) * p);
  }
}

void iq2_s(const std::byte* block, uint8_t* quantized, float* scales, float*) {
  for (int g = 0; g < 16; ++g) {
    scales[g] = half_at(block) * (0.5f + static_cast<float>(half_byte(block + 74, g))) * 0.25f;
  }
  for (int p = 0; p < 32; ++p) {
    const unsigned high = byte_at(block + 66, p / 4) >> (p % 4 * 2) & 3u;
    const uint16_t point = lattices::kIq2S[byte_at(block + 2, p) | high << 8];
    point_of_eight(point, byte_at(block + 34, p), quantized + static_cast<std::ptrdiff_t>(8) * p);
  }
}

void iq3_xxs(const std::byte* block, uint8_t* quantized, float* scales, float*) {
  const auto magnitude = [](unsigned step) { return kThreeBitSteps[step]; };
  for (int g = 0; g < 8; ++g) {
    const auto rest = at<uint32_t>(block + 66, g);
    scales[g] = half_at(block) * (0.5f + static_cast<float>(rest >> 28)) * 0.5f;
    for (int p = 0; p < 8; ++p) {
      const int signs = all_signs(rest >> (7 * (p / 2))) >> (p % 2 * 4);
      point_of_four(lattices::kIq3Xxs[byte_at(block + 2, 8 * g + p)], signs, magnitude, quantized + 32 * g + 4 * p);
    }
  }
}

void iq3_s(const std::byte* block, uint8_t* quantized, float* scales, float*) {
  for (int g = 0; g < 8; ++g) {
    scales[g] = half_at(block) * static_cast<float>(odd_step(half_byte(block + 106, g)));
  }
  for (int p = 0; p < 64; ++p) {
    const unsigned high = byte_at(block + 66, p / 8) >> (p % 8) & 1u;
    const int signs = byte_at(block + 74, p / 2) >> (p % 2 * 4);
    point_of_four(lattices::kIq3S[byte_at(block + 2, p) | high << 8], signs, odd_step,
                  quantized + static_cast<std::ptrdiff_t>(4) * p);
  }
}

void iq1_s(const std::byte* block, uint8_t* quantized, float* scales, float*) {
  for (int g = 0; g < 8; ++g) {
    const auto rest = at<uint16_t>(block + 34, g);
    scales[g] = half_at(block) * static_cast<float>(odd_step(rest >> 12 & 7u)) * 0.125f;
    for (int p = 0; p < 4; ++p) {
      const unsigned high = rest >> (3 * p) & 7u;
      const uint16_t point = lattices::kIq1[byte_at(block + 2, 4 * g + p) | high << 8];
      ternary_point(point, (rest & 0x8000u) != 0, quantized + 32 * g + 8 * p);
    }
  }
}

void iq1_m(const std::byte* block, uint8_t* quantized, float* scales, float*) {
  uint16_t bits = 0;  // the half that scales are multiplied by, four bits in each word of steps
  for (int i = 0; i < 4; ++i) bits |= static_cast<uint16_t>((at<uint16_t>(block + 48, i) >> 12) << (4 * i));
  const float scale = to_float(std::bit_cast<half>(bits));
  for (int g = 0; g < 16; ++g) {
    const unsigned step = at<uint16_t>(block + 48, g / 4) >> (g % 4 * 3) & 7u;
    scales[g] = scale * static_cast<float>(odd_step(step)) * 0.125f;
  }
  for (int p = 0; p < 32; ++p) {
    const uint8_t rest = half_byte(block + 32, p);
    const uint16_t point = lattices::kIq1[byte_at(block, p) | (rest & 7u) << 8];
    ternary_point(point, (rest & 8u) != 0, quantized + static_cast<std::ptrdiff_t>(8) * p);
  }
}

void tq1_0(const std::byte* block, uint8_t* quantized, float* scales, float*) {
  constexpr std::array<unsigned, 5> kPowers = {1, 3, 9, 27, 81};
  std::fill(scales, scales + 8, half_at(block + 52));
  // Five values in a byte of 32, then of 16; four in the last four.
  const auto unpack = [&](int first, int bytes, int digits) {
    for (int digit = 0; digit < digits; ++digit) {
      for (int i = 0; i < bytes; ++i) {
        const unsigned value = byte_at(block, first + i) * kPowers[static_cast<size_t>(digit)] & 255u;
        *quantized++ = static_cast<uint8_t>((value * 3 >> 8) + 7);
      }
    }
  };
  unpack(0, 32, 5);
  unpack(32, 16, 5);
  unpack(48, 4, 4);
}

void tq2_0(const std::byte* block, uint8_t* quantized, float* scales, float*) {
  std::fill(scales, scales + 8, half_at(block + 64));
  for (int i = 0; i < 256; ++i) {
    quantized[i] = static_cast<uint8_t>((byte_at(block, i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3u) + 7);
  }
}

void mxfp4(const std::byte* block, uint8_t* quantized, float* scales, float*) {
  const uint32_t exponent = byte_at(block, 0);
  scales[0] = std::bit_cast<float>(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
  for (int i = 0; i < 32; ++i) {
    const unsigned q = byte_at(block + 1, i % 16) >> (i / 16 * 4) & 15u;
    set_signed(kHalves[q & 7u], q > 7, quantized[i]);
  }
}

// A scale is an unsigned float of 4 and 3 bits, of which 127 is no number: ggml takes that for 0.
void nvfp4(const std::byte* block, uint8_t* quantized, float* scales, float*) {
  for (int g = 0; g < 4; ++g) {
    const unsigned stored = byte_at(block, g);
    const int exponent = static_cast<int>(stored >> 3 & 15u);
    const auto digits = static_cast<float>(exponent > 0 ? 8 + (stored & 7u) : stored & 7u);
    scales[g] = stored == 127 ? 0 : std::ldexp(digits, std::max(exponent, 1) - 11);
    for (int i = 0; i < 16; ++i) {
      const unsigned q = byte_at(block + 4 + static_cast<std::ptrdiff_t>(8) * g, i % 8) >> (i / 8 * 4) & 15u;
      set_signed(kHalves[q & 7u], q > 7, quantized[16 * g + i]);
    }
  }
}

}  // namespace turbomind
