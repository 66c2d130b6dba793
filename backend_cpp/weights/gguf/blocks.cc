#include "weights/gguf/blocks.h"

#include <array>
#include <cstring>

#include "kernels/types.h"
#include "weights/gguf/lattice_blocks.h"

namespace turbomind {

namespace {

const uint8_t* unsigned_at(const std::byte* bytes) {
  return reinterpret_cast<const uint8_t*>(bytes);
}

// 32 codes in the halves of 16 bytes: the first 16 in the low ones.
void split_halves(const uint8_t* bytes, uint8_t* quantized) {
  for (int i = 0; i < 16; ++i) {
    quantized[i] = bytes[i] & 15u;
    quantized[16 + i] = bytes[i] >> 4;
  }
}

// Bit i of a little-endian word is the fifth bit of code i.
void add_fifth_bits(const uint8_t* word, uint8_t* quantized) {
  constexpr uint64_t kEachByte = 0x0101010101010101;
  for (int i = 0; i < 4; ++i) {
    const uint64_t spread = word[i] * kEachByte & 0x8040201008040201;  // bit j in byte j
    uint64_t eight;
    std::memcpy(&eight, quantized + 8 * i, sizeof(eight));
    eight |= (spread + 0x7F * kEachByte) >> 3 & 0x10 * kEachByte;
    std::memcpy(quantized + 8 * i, &eight, sizeof(eight));
  }
}

void q4_0(const std::byte* block, uint8_t* quantized, float* scales, float*) {
  scales[0] = half_at(block);
  split_halves(unsigned_at(block + 2), quantized);
}

void q4_1(const std::byte* block, uint8_t* quantized, float* scales, float* mins) {
  scales[0] = half_at(block);
  mins[0] = half_at(block + 2);
  split_halves(unsigned_at(block + 4), quantized);
}

void q5_0(const std::byte* block, uint8_t* quantized, float* scales, float*) {
  scales[0] = half_at(block);
  split_halves(unsigned_at(block + 6), quantized);
  add_fifth_bits(unsigned_at(block + 2), quantized);
}

void q5_1(const std::byte* block, uint8_t* quantized, float* scales, float* mins) {
  scales[0] = half_at(block);
  mins[0] = half_at(block + 2);
  split_halves(unsigned_at(block + 8), quantized);
  add_fifth_bits(unsigned_at(block + 4), quantized);
}

void q8_0(const std::byte* block, uint8_t* quantized, float* scales, float*) {
  scales[0] = half_at(block);
  for (int i = 0; i < 32; ++i) quantized[i] = unsigned_at(block + 2)[i] ^ 128u;
}

// No type of GGUF: blocks that affine_blocks (weights/gguf/matrix.h) makes.
void affine8(const std::byte* block, uint8_t* quantized, float* scales, float* mins) {
  scales[0] = half_at(block);
  mins[0] = half_at(block + 2);
  std::memcpy(quantized, block + 4, 32);
}

// To 32 codes, from `bits` bits of a byte each, which begin at `shift`; bits below `target_shift` stay.
inline void take_bits(const uint8_t* bytes, int shift, int bits, int target_shift, uint8_t* quantized) {
  const auto kept = static_cast<uint8_t>((1 << target_shift) - 1);
  const auto mask = static_cast<uint8_t>((1 << bits) - 1);
  for (int i = 0; i < 32; ++i) {
    quantized[i] = static_cast<uint8_t>((quantized[i] & kept) | (bytes[i] >> shift & mask) << target_shift);
  }
}

// Two bits of each of 256 codes in 64 bytes: byte 32 n + i holds those of codes 128 n + 32 j + i, j = 0..3.
void take_pairs(const uint8_t* bytes, int target_shift, uint8_t* quantized) {
  for (int g = 0; g < 8; ++g) take_bits(bytes + g / 4 * 32, g % 4 * 2, 2, target_shift, quantized + g * 32);
}

// Bit g of 32 bytes is that of 32 codes, for each g.
void take_single_bits(const uint8_t* bytes, int target_shift, uint8_t* quantized) {
  for (int g = 0; g < 8; ++g) take_bits(bytes, g, 1, target_shift, quantized + g * 32);
}

void q2_k(const std::byte* block, uint8_t* quantized, float* scales, float* mins) {
  const uint8_t* steps = unsigned_at(block);
  const float scale = half_at(block + 80);
  const float min = half_at(block + 82);
  for (int g = 0; g < 16; ++g) {
    scales[g] = scale * static_cast<float>(steps[g] & 15u);
    mins[g] = -(min * static_cast<float>(steps[g] >> 4));
  }
  take_pairs(unsigned_at(block + 16), 0, quantized);
}

void q3_k(const std::byte* block, uint8_t* quantized, float* scales, float*) {
  const uint8_t* steps = unsigned_at(block + 96);
  const float scale = half_at(block + 108);
  for (int g = 0; g < 16; ++g) {
    const int low = g < 8 ? steps[g] & 15 : steps[g - 8] >> 4;
    scales[g] = scale * static_cast<float>((low | (steps[8 + g % 4] >> (g / 4 * 2) & 3) << 4) - 32);
  }
  take_pairs(unsigned_at(block + 32), 0, quantized);
  take_single_bits(unsigned_at(block), 2, quantized);
}

// Scales and minima of eight groups of Q4_K and Q5_K, six bits each, in twelve bytes.
void split_steps(const std::byte* block, float* scales, float* mins) {
  const float scale = half_at(block);
  const float min = half_at(block + 2);
  const uint8_t* steps = unsigned_at(block + 4);
  for (int g = 0; g < 8; ++g) {
    const int s = g < 4 ? steps[g] & 63 : (steps[g + 4] & 15) | steps[g - 4] >> 6 << 4;
    const int m = g < 4 ? steps[g + 4] & 63 : steps[g + 4] >> 4 | steps[g] >> 6 << 4;
    scales[g] = scale * static_cast<float>(s);
    mins[g] = -(min * static_cast<float>(m));
  }
}

// 256 codes in the halves of 128 bytes: of each 64 the first 32 in the low ones.
void take_halves_of_64(const uint8_t* bytes, uint8_t* quantized) {
  for (int g = 0; g < 8; ++g) take_bits(bytes + g / 2 * 32, g % 2 * 4, 4, 0, quantized + g * 32);
}

void q4_k(const std::byte* block, uint8_t* quantized, float* scales, float* mins) {
  split_steps(block, scales, mins);
  take_halves_of_64(unsigned_at(block + 16), quantized);
}

void q5_k(const std::byte* block, uint8_t* quantized, float* scales, float* mins) {
  split_steps(block, scales, mins);
  take_halves_of_64(unsigned_at(block + 48), quantized);
  take_single_bits(unsigned_at(block + 16), 4, quantized);
}

void q6_k(const std::byte* block, uint8_t* quantized, float* scales, float*) {
  const uint8_t* low = unsigned_at(block);
  const auto* steps = reinterpret_cast<const int8_t*>(block + 192);
  const float scale = half_at(block + 208);
  for (int g = 0; g < 16; ++g) scales[g] = scale * static_cast<float>(steps[g]);
  for (int g = 0; g < 8; ++g) take_bits(low + g / 4 * 64 + g % 2 * 32, g % 4 / 2 * 4, 4, 0, quantized + g * 32);
  take_pairs(unsigned_at(block + 128), 4, quantized);
}

// Values of the 16 codes of IQ4_NL and IQ4_XS.
constexpr std::array<int8_t, 16> kUnequalSteps = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                  1,    13,   25,  38,  53,  69,  89,  113};

void to_unequal_steps(uint8_t* quantized) {
  for (int i = 0; i < 32; ++i) quantized[i] = static_cast<uint8_t>(128 + kUnequalSteps[quantized[i]]);
}

void iq4_nl(const std::byte* block, uint8_t* quantized, float* scales, float*) {
  scales[0] = half_at(block);
  split_halves(unsigned_at(block + 2), quantized);
  to_unequal_steps(quantized);
}

void iq4_xs(const std::byte* block, uint8_t* quantized, float* scales, float*) {
  const float scale = half_at(block);
  const uint8_t* high = unsigned_at(block + 2);
  const uint8_t* low = unsigned_at(block + 4);
  for (int g = 0; g < 8; ++g) {
    const int step = (low[g / 2] >> (g % 2 * 4) & 15) | (high[g / 4] >> (g % 4 * 2) & 3) << 4;
    scales[g] = scale * static_cast<float>(step - 32);
    split_halves(unsigned_at(block + 8 + static_cast<std::ptrdiff_t>(16) * g),
                 quantized + static_cast<std::ptrdiff_t>(32) * g);
    to_unequal_steps(quantized + static_cast<std::ptrdiff_t>(32) * g);
  }
}

constexpr GgufBlocks kBlocks[] = {
    {"Q4_0", 32, 18, 4, 32, 8, q4_0},
    {"Q4_1", 32, 20, 4, 32, -1, q4_1},
    {"Q5_0", 32, 22, 5, 32, 16, q5_0},
    {"Q5_1", 32, 24, 5, 32, -1, q5_1},
    {"AFFINE8", 32, 36, 8, 32, -1, affine8},
    {"Q8_0", 32, 34, 8, 32, 128, q8_0},
    {"Q2_K", 256, 84, 4, 16, -1, q2_k, 80, 82},
    {"Q3_K", 256, 110, 4, 16, 4, q3_k, 108},
    {"Q4_K", 256, 144, 4, 32, -1, q4_k, 0, 2},
    {"Q5_K", 256, 176, 5, 32, -1, q5_k, 0, 2},
    {"Q6_K", 256, 210, 6, 16, 32, q6_k, 208},
    {"IQ4_NL", 32, 18, 8, 32, 128, iq4_nl},
    {"IQ4_XS", 256, 136, 8, 32, 128, iq4_xs, 0},
    {"IQ1_S", 256, 50, 8, 32, 128, iq1_s},
    {"IQ1_M", 256, 56, 8, 16, 128, iq1_m},
    {"IQ2_XS", 256, 74, 8, 16, 128, iq2_xs},
    {"IQ2_XXS", 256, 66, 8, 32, 128, iq2_xxs},
    {"IQ2_S", 256, 82, 8, 16, 128, iq2_s},
    {"IQ3_XXS", 256, 98, 8, 32, 128, iq3_xxs},
    {"IQ3_S", 256, 110, 8, 32, 128, iq3_s},
    {"MXFP4", 32, 17, 8, 32, 128, mxfp4},
    {"TQ1_0", 256, 54, 4, 32, 8, tq1_0},
    {"TQ2_0", 256, 66, 4, 32, 8, tq2_0},
    {"NVFP4", 64, 36, 8, 16, 128, nvfp4},
};

}  // namespace

float half_at(const std::byte* bytes) {
  half value;
  std::memcpy(&value, bytes, sizeof(value));
  return to_float(value);
}

const GgufBlocks* gguf_blocks(const std::string& dtype) {
  for (const GgufBlocks& blocks : kBlocks) {
    if (dtype == blocks.name) return &blocks;
  }
  return nullptr;
}

}  // namespace turbomind
