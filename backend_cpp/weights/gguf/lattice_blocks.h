// Block formats of GGUF whose codes are not numbers by themselves: points of a lattice (IQ1 to IQ3), three values in a
// digit (TQ1, TQ2) and 4-bit floats (MXFP4, NVFP4). As weights/gguf/blocks.h says, with the code 128 for 0.
#pragma once

#include <cstddef>
#include <cstdint>

namespace turbomind {

void iq1_s(const std::byte* block, uint8_t* quantized, float* scales, float*);
void iq1_m(const std::byte* block, uint8_t* quantized, float* scales, float*);
void iq2_xxs(const std::byte* block, uint8_t* quantized, float* scales, float*);
void iq2_xs(const std::byte* block, uint8_t* quantized, float* scales, float*);
void iq2_s(const std::byte* block, uint8_t* quantized, float* scales, float*);
void iq3_xxs(const std::byte* block, uint8_t* quantized, float* scales, float*);
void iq3_s(const std::byte* block, uint8_t* quantized, float* scales, float*);
// Codes of four bits, with 8 for 0.
void tq1_0(const std::byte* block, uint8_t* quantized, float* scales, float*);
void tq2_0(const std::byte* block, uint8_t* quantized, float* scales, float*);
void mxfp4(const std::byte* block, uint8_t* quantized, float* scales, float*);
void nvfp4(const std::byte* block, uint8_t* quantized, float* scales, float*);

}  // namespace turbomind
