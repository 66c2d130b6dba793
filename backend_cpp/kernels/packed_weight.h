// Weights of 4, 5, 6 and 8 bits in the order in which the kernels read them.
//
// Outputs come in tiles of kTileOutputs. A tile's codes are group by group; inside a group, four neighbouring inputs of
// each of the 16 outputs make 64 bytes (int8), or eight neighbouring inputs do (int4: the first four in the low halves
// of the bytes, the other four in the high halves). So one vector holds what one 32-bit lane of activations is
// multiplied with for every output of the tile, and a tile is one unbroken stream. Scales and zero points: [tiles,
// groups, 16].
//
// int5 and int6 have four bits of each code there: the lowest of the first four inputs, the highest of the other four.
// After the vectors of 32 inputs (int5) or 16 (int6) comes a vector whose byte holds the rest of the codes at its place
// in each quad of these inputs, the first quad in the lowest bits.
//
// Where scale_groups groups share a scale (K-quants of GGUF, on the CPU), `scales` has halves [tiles, groups /
// scale_groups, 16] and after them factors [tiles, groups, 16], signed bytes that the half is multiplied with; `mins`
// likewise.
//
// in_features is padded to whole groups and out_features to whole tiles with the code that stands for zero.
//
// Weights of 32 and 16 bits that are tiled: [tiles, inputs, 16], and bfloat16 [tiles, pairs of inputs, 16, 2], with
// zeros beyond the last output and input.
//
// float8 is as int8 does. Kernels take its two codes that are no numbers for 480: where there is one, the scale of
// its group or output is NaN, so that every product of that output is.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/linear.h"

namespace turbomind {

inline constexpr int kTileOutputs = 16;

struct PackedShape {
  int out_features;
  int in_features;
  int bits;   // 8, 6, 5 or 4
  int group;  // a multiple of unit()
  bool is_float8 = false;
  int scale_groups = 1;  // LinearWeight::scale_groups

  int tiles() const { return (out_features + kTileOutputs - 1) / kTileOutputs; }
  int groups() const { return (in_features + group - 1) / group; }
  int padded_features() const { return groups() * group; }
  size_t group_bytes() const { return static_cast<size_t>(kTileOutputs) * group * bits / 8; }
  size_t quantized_bytes() const { return group_bytes() * groups() * tiles(); }
  size_t scale_count() const { return static_cast<size_t>(kTileOutputs) * groups() * tiles(); }
  size_t scale_bytes() const {
    return scale_count() / scale_groups * sizeof(half) + (scale_groups > 1 ? scale_count() : 0);
  }
  int zero_point() const { return is_float8 ? 0 : 1 << (bits - 1); }
  int rest_bits() const { return bits == 8 ? 0 : bits - 4; }  // of a code, in a vector of their own
  // Inputs that share vectors.
  int unit() const { return bits == 8 ? 4 : bits == 4 ? 8 : 32 / rest_bits(); }
  WeightFormat format() const {
    if (is_float8) return WeightFormat::kFloat8;
    return bits == 8   ? WeightFormat::kInt8
           : bits == 6 ? WeightFormat::kInt6
           : bits == 5 ? WeightFormat::kInt5
                       : WeightFormat::kInt4;
  }
};

// Bits of a code of a packed format.
constexpr int bits_of(WeightFormat format) {
  return format == WeightFormat::kInt4 ? 4 : format == WeightFormat::kInt5 ? 5 : format == WeightFormat::kInt6 ? 6 : 8;
}

inline PackedShape packed_shape(const LinearWeight& weight) {
  return {weight.out_features,
          weight.in_features,
          bits_of(weight.format),
          weight.group,
          weight.format == WeightFormat::kFloat8,
          weight.scale_groups};
}

// Rounds a tile of float32 weights to symmetric codes of 8 or 4 bits and packs them.
//   w      the tile's rows, `rows` (at most 16) of them, [rows, in_features]
//   codes  group_bytes() * groups() bytes; scales [groups, 16]
// int8: scale = max |w| / 127. int4: scale = w_max / -8 for the w_max of largest magnitude, so that it is met exactly
// and the other sign has 7 steps.
void quantize_and_pack_tile(const PackedShape& shape, const float* w, int rows, uint8_t* quantized, half* scales);

// Factors of the groups that share `halves`, LinearWeight::scales or mins.
inline const int8_t* group_factors(const PackedShape& shape, const half* halves) {
  return reinterpret_cast<const int8_t*>(halves + shape.scale_count() / shape.scale_groups);
}

// Bytes of a tiled weight of a format of 32 or 16 bits.
size_t tiled_bytes(const LinearWeight& weight);
// Writes a row-major weight of 32 or 16 bits as tiles.
void tile_rows(const LinearWeight& weight, void* tiles);

// The numbers [in_features] of one output of a weight of integers with scales, and with minima or without zeros of its
// own; without an order of inputs.
void dequantize_output(const LinearWeight& weight, int output, float* values);

// Packs a tile of given codes [rows, in_features], one in a byte.
void pack_tile(const PackedShape& shape, const uint8_t* source, int rows, uint8_t* quantized);

}  // namespace turbomind
