// The block formats of GGUF files: runs of neighbouring inputs stored as codes with scales (ggml, ggml-common.h, the
// structs block_q4_0 and so on; their meaning: ggml-quants.c, dequantize_row_*).
//
// Inside a block, groups of neighbouring inputs share a scale, and in some formats a minimum:
//
//   w = scale (code - zero)      zero is the same in all of the format: Q4_0, Q5_0, Q8_0, Q3_K, Q6_K, IQ4_NL, IQ4_XS,
//                                and those of weights/gguf/lattice_blocks.h
//   w = scale code + min         Q4_1, Q5_1, Q2_K, Q4_K, Q5_K
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace turbomind {

struct GgufBlocks {
  const char* name;
  int inputs;  // of a block
  int bytes;   // of a block
  int bits;    // 4, 5, 6 or 8: room that a code needs here
  int group;   // inputs that share a scale
  int zero;    // code of 0; -1: each group has a minimum instead
  // One block's codes [inputs], scales and, where groups have them, minima [inputs / group].
  void (*decode)(const std::byte* block, uint8_t* quantized, float* scales, float* mins);
  // Bytes before the halves of a block that those of its groups are whole multiples of, in [-128, 127]; -1: there are
  // none. A minimum is a multiple of the half with its sign changed.
  int scale_at = -1;
  int min_at = -1;

  bool has_mins() const { return zero < 0; }
};

float half_at(const std::byte* bytes);

// Null for types that are no blocks, or none that are read.
const GgufBlocks* gguf_blocks(const std::string& dtype);

}  // namespace turbomind
