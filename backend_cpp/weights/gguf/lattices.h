// The points of the lattices that GGUF's formats of 1 to 3 bits choose from (ggml-common.h, iq2xxs_grid and so on).
//
// A point is eight steps of two bits, or four of three, the first in the lowest ones; what a step stands for differs
// between the formats (weights/gguf/lattice_blocks.cc).
#pragma once

#include <array>
#include <cstdint>

namespace turbomind::lattices {

extern const std::array<uint16_t, 256> kIq2Xxs;  // IQ2_XXS
extern const std::array<uint16_t, 512> kIq2Xs;   // IQ2_XS
extern const std::array<uint16_t, 1024> kIq2S;   // IQ2_S
extern const std::array<uint16_t, 256> kIq3Xxs;  // IQ3_XXS
extern const std::array<uint16_t, 512> kIq3S;    // IQ3_S
extern const std::array<uint16_t, 2048> kIq1;    // IQ1_S and IQ1_M

}  // namespace turbomind::lattices
