// 8- and 4-bit weights in the order in which the kernels read them.
//
// Outputs come in tiles of kTileOutputs. A tile's codes are group by group; inside a group, four neighbouring inputs of
// each of the 16 outputs make 64 bytes (int8), or eight neighbouring inputs do (int4: the first four in the low halves
// of the bytes, the other four in the high halves). So one vector holds what one 32-bit lane of activations is
// multiplied with for every output of the tile, and a tile is one unbroken stream. Scales and zero points: [tiles,
// groups, 16].
//
// in_features is padded to whole groups and out_features to whole tiles with the code that stands for zero.
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
  int bits;   // 8 or 4
  int group;  // a multiple of 8
  bool is_float8 = false;

  int tiles() const { return (out_features + kTileOutputs - 1) / kTileOutputs; }
  int groups() const { return (in_features + group - 1) / group; }
  int padded_features() const { return groups() * group; }
  size_t group_bytes() const { return static_cast<size_t>(kTileOutputs) * group * bits / 8; }
  size_t code_bytes() const { return group_bytes() * groups() * tiles(); }
  size_t scale_count() const { return static_cast<size_t>(kTileOutputs) * groups() * tiles(); }
  int zero_code() const { return is_float8 ? 0 : bits == 8 ? 128 : 8; }
  WeightFormat format() const {
    return is_float8 ? WeightFormat::kFloat8 : bits == 8 ? WeightFormat::kInt8 : WeightFormat::kInt4;
  }
};

inline PackedShape packed_shape(const LinearWeight& weight) {
  return {weight.out_features, weight.in_features, weight.format == WeightFormat::kInt4 ? 4 : 8, weight.group,
          weight.format == WeightFormat::kFloat8};
}

// Rounds a tile of float32 weights to symmetric codes and packs them.
//   w      the tile's rows, `rows` (at most 16) of them, [rows, in_features]
//   codes  group_bytes() * groups() bytes; scales [groups, 16]
// int8: scale = max |w| / 127. int4: scale = w_max / -8 for the w_max of largest magnitude, so that it is met exactly
// and the other sign has 7 steps.
void quantize_and_pack_tile(const PackedShape& shape, const float* w, int rows, uint8_t* codes, half* scales);

// Packs a tile of given codes [rows, in_features], one in a byte.
void pack_tile(const PackedShape& shape, const uint8_t* source, int rows, uint8_t* codes);

}  // namespace turbomind
