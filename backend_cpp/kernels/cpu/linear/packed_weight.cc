#include "kernels/packed_weight.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

namespace turbomind {

namespace {

// Codes and scale of one group of one output.
half quantize_group(const float* w, int count, int bits, uint8_t* quantized) {
  float extreme = 0;
  for (int i = 0; i < count; ++i) extreme = std::fabs(w[i]) > std::fabs(extreme) ? w[i] : extreme;
  const half scale = to_half(bits == 8 ? std::fabs(extreme) / 127.0f : extreme / -8.0f);
  const float step = to_float(scale);
  const float inverse = step != 0 ? 1.0f / step : 0.0f;
  const int zero = bits == 8 ? 128 : 8;
  for (int i = 0; i < count; ++i) {
    // Adding and taking off 1.5 2^23 rounds to the nearest integer, ties to even, without a call.
    const float rounded = (w[i] * inverse + 12582912.0f) - 12582912.0f;
    quantized[i] = static_cast<uint8_t>(std::clamp(static_cast<int>(rounded) + zero, 0, 2 * zero - 1));
  }
  return scale;
}

// Scale or minimum of a group, counted over all tiles, and an output of its tile.
float group_value(const PackedShape& shape, const half* halves, size_t group, size_t lane) {
  const float shared = to_float(halves[group / static_cast<size_t>(shape.scale_groups) * kTileOutputs + lane]);
  if (shape.scale_groups == 1) return shared;
  return shared * static_cast<float>(group_factors(shape, halves)[group * kTileOutputs + lane]);
}

bool is_of_pairs(const LinearWeight& weight) {
  return weight.format == WeightFormat::kBFloat16;
}

size_t number_bytes(const LinearWeight& weight) {
  return weight.format == WeightFormat::kFloat32 ? sizeof(float) : sizeof(half);
}

// kUnit: the bytes of an output that are adjacent in a tile.
template <size_t kUnit>
void write_tiles(const LinearWeight& weight, void* tiles) {
  const size_t row_bytes = weight.in_features * number_bytes(weight);
  auto* to = static_cast<std::byte*>(tiles);
  for (int first = 0; first < weight.out_features; first += kTileOutputs) {
    for (size_t at = 0; at < row_bytes; at += kUnit) {
      if (first + kTileOutputs <= weight.out_features && at + kUnit <= row_bytes) {
        const std::byte* from = static_cast<const std::byte*>(weight.data) + first * row_bytes + at;
        for (int output = 0; output < kTileOutputs; ++output) {
          std::memcpy(to + output * kUnit, from + output * row_bytes, kUnit);
        }
        to += kTileOutputs * kUnit;
        continue;
      }
      for (int output = first; output < first + kTileOutputs; ++output, to += kUnit) {
        const std::byte* from = static_cast<const std::byte*>(weight.data) + output * row_bytes + at;
        std::memset(to, 0, kUnit);
        if (output < weight.out_features) std::memcpy(to, from, std::min(kUnit, row_bytes - at));
      }
    }
  }
}

}  // namespace

void dequantize_output(const LinearWeight& weight, int output, float* values) {
  const PackedShape shape = packed_shape(weight);
  const size_t first_group = static_cast<size_t>(output / kTileOutputs) * shape.groups();
  const auto lane = static_cast<size_t>(output % kTileOutputs);
  const int step = shape.bits == 8 ? 4 : 8;  // inputs in one vector
  const int rest_bits = shape.rest_bits();
  constexpr int kVector = 4 * kTileOutputs;
  const auto* vector = static_cast<const uint8_t*>(weight.data) + first_group * shape.group_bytes() + 4 * lane;
  for (int g = 0; g < shape.groups(); ++g) {
    const size_t group = first_group + static_cast<size_t>(g);
    const float scale = group_value(shape, weight.scales, group, lane);
    const float min = weight.mins != nullptr ? group_value(shape, weight.mins, group, lane)
                                             : scale * static_cast<float>(-shape.zero_point());
    for (int unit = 0; unit < shape.group; unit += shape.unit()) {
      const uint8_t* rests = vector + shape.unit() / step * kVector;
      for (int k = 0; k < shape.unit(); ++k) {
        const int input = g * shape.group + unit + k;
        if (input == shape.in_features) return;
        int value = vector[k / step * kVector + k % 4];
        const int rest = rest_bits == 0 ? 0 : rests[k % 4] >> (rest_bits * (k / 4)) & ((1 << rest_bits) - 1);
        if (shape.bits < 8) value = k % 8 < 4 ? (value & 15) | rest << 4 : value >> 4 << rest_bits | rest;
        values[input] = scale * static_cast<float>(value) + min;
      }
      vector += (shape.unit() / step + (rest_bits != 0 ? 1 : 0)) * kVector;
    }
  }
}

void quantize_and_pack_tile(const PackedShape& shape, const float* w, int rows, uint8_t* quantized, half* scales) {
  std::vector<uint8_t> values(static_cast<size_t>(rows) * shape.in_features);
  for (int g = 0; g < shape.groups(); ++g) {
    const int first = g * shape.group;
    const int count = std::min(shape.group, shape.in_features - first);
    for (int r = 0; r < kTileOutputs; ++r) {
      const size_t offset = static_cast<size_t>(r) * shape.in_features + first;
      scales[g * kTileOutputs + r] =
          r < rows ? quantize_group(w + offset, count, shape.bits, values.data() + offset) : half{0};
    }
  }
  pack_tile(shape, values.data(), rows, quantized);
}

void pack_tile(const PackedShape& shape, const uint8_t* source, int rows, uint8_t* quantized) {
  constexpr int kVector = 4 * kTileOutputs;
  constexpr uint32_t kLowHalves = 0x0F0F0F0F;
  const int step = shape.bits == 8 ? 4 : 8;  // inputs in one vector
  const int rest_bits = shape.rest_bits();
  const uint32_t rest_mask = 0x01010101u * ((1u << rest_bits) - 1);
  uint8_t inputs[8];
  uint32_t words[2] = {};  // the codes of a quad, one in a byte
  for (int unit = 0; unit < shape.padded_features(); unit += shape.unit()) {
    uint32_t rests[kTileOutputs] = {};
    for (int quad = 0; quad < shape.unit() / 4; quad += step / 4) {
      const int input = unit + 4 * quad;
      const int count = std::clamp(shape.in_features - input, 0, step);
      for (int row = 0; row < kTileOutputs; ++row, quantized += sizeof(uint32_t)) {
        const uint8_t* from = source + static_cast<size_t>(row) * shape.in_features + input;
        if (row >= rows || count < step) {
          std::fill(inputs, inputs + step, static_cast<uint8_t>(shape.zero_point()));
          if (row < rows) std::copy_n(from, count, inputs);
          from = inputs;
        }
        std::memcpy(words, from, step == 4 ? 4 : 8);
        const auto [first, second] = words;
        const uint32_t packed = step == 4 ? first : (first & kLowHalves) | (second >> rest_bits & kLowHalves) << 4;
        std::memcpy(quantized, &packed, sizeof(packed));
        const uint32_t both = (first >> 4 & rest_mask) | (second & rest_mask) << rest_bits;
        rests[row] |= both << (rest_bits * quad);
      }
    }
    if (rest_bits != 0) quantized = std::copy_n(reinterpret_cast<const uint8_t*>(rests), kVector, quantized);
  }
}

size_t tiled_bytes(const LinearWeight& weight) {
  const size_t inputs = static_cast<size_t>(weight.in_features) + (is_of_pairs(weight) ? weight.in_features % 2 : 0);
  const size_t tiles = static_cast<size_t>(weight.out_features + kTileOutputs - 1) / kTileOutputs;
  return tiles * kTileOutputs * inputs * number_bytes(weight);
}

void tile_rows(const LinearWeight& weight, void* tiles) {
  if (weight.format == WeightFormat::kFloat16) return write_tiles<sizeof(half)>(weight, tiles);
  write_tiles<sizeof(float)>(weight, tiles);
}

}  // namespace turbomind
