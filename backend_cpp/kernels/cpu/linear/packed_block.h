// Products of rounded activations with 8- and 4-bit weights. Included by kernels_isa.cc only.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/cpu/linear/packed_tile.h"

namespace turbomind::TM_ISA {

inline constexpr int kPackedRows = kTileVecs == 1 ? 8 : kTileVecs == 2 ? 2 : 1;

// Where a row's codes go: `unit` of them together, then those of other rows, then the next.
class CodeTarget {
 public:
  CodeTarget(int8_t* codes, const RowsLayout& layout)
      : codes_(codes), unit_(layout.unit), gap_(static_cast<size_t>(layout.unit) * (layout.interleave - 1)) {}

  // Puts `count` codes, a multiple of four; where kUnit is not 0, it is the layout's.
  template <int kUnit>
  void put(const int8_t* lanes, int count) {
    const int unit = kUnit != 0 ? kUnit : unit_;
    for (int lane = 0; lane < count; lane += 4) {
      std::memcpy(codes_, lanes + lane, 4);
      codes_ += 4;
      if ((in_unit_ += 4) == unit) {
        codes_ += gap_;
        in_unit_ = 0;
      }
    }
  }

 private:
  int8_t* codes_;
  int unit_;
  size_t gap_;
  int in_unit_ = 0;
};

// Rounds a group, of which `count` inputs are there and the others are 0; kIsWhole: all are, in whole vectors. Returns
// the scale and the sum of the codes.
template <bool kIsWhole, int kUnit>
inline std::pair<float, int32_t> quantize_group(const float* source, int count, int group, CodeTarget& target) {
  const auto element = [&](int i) {
    return kIsWhole || count - i >= kLanes ? load(source + i) : load_partial(source + i, std::max(0, count - i));
  };
  Vec top = zero();
  Vec probe = zero();  // NaN and infinity must not vanish: they make the scale, and so the row's result, not a number
  for (int i = 0; i < (kIsWhole ? group : count); i += kLanes) {
    const Vec v = element(i);
    top = max(top, absolute(v));
    probe = fma(v, zero(), probe);
  }
  const float scale = reduce_max(top) / 127.0f + reduce_add(probe);
  const Vec inverse = broadcast(scale > 0 ? 1.0f / scale : 0.0f);
  IVec sum = broadcast_int(0);
  for (int i = 0; i < group; i += kLanes) {
    int8_t lanes[kLanes];
    sum = add_ints(sum, store_codes(lanes, mul(element(i), inverse)));
    target.put<kUnit>(lanes, kIsWhole ? kLanes : std::min(kLanes, group - i));
  }
  return {scale, static_cast<int32_t>(reduce_add(to_floats(sum)))};
}

// scale = max |x| / 127 of a group, ties to even. Codes beyond in_features are 0.
template <int kUnit>
inline void quantize_groups(const float* x, int in_features, int group, int row, const QuantizedRows& rounded) {
  CodeTarget target(rounded.row(static_cast<size_t>(row)), rounded.layout);
  for (int g = 0; g < rounded.groups; ++g) {
    const float* source = x + static_cast<size_t>(g) * group;
    const int count = std::min(group, in_features - g * group);
    const auto [scale, sum] = count == group && group % kLanes == 0
                                  ? quantize_group<true, kUnit>(source, count, group, target)
                                  : quantize_group<false, kUnit>(source, count, group, target);
    const size_t entry = static_cast<size_t>(g) * rounded.rows + row;
    rounded.scales[entry] = scale;
    rounded.offsets[entry] = sum * rounded.zero_factor;
  }
}

inline void quantize_row(const float* x, int in_features, int group, int row, const QuantizedRows& rounded) {
  if (rounded.layout.unit == 4) {
    quantize_groups<4>(x, in_features, group, row, rounded);
  } else {
    quantize_groups<0>(x, in_features, group, row, rounded);
  }
}

// One tile of a packed weight.
struct PackedTile {
  const uint8_t* codes;
  const half* scales;    // [groups, 16] or null
  const uint8_t* zeros;  // [groups, 16] or null
  const half* mins;      // [groups, 16] or null
};

inline PackedTile packed_tile(const LinearWeight& weight, const PackedShape& shape, int index) {
  const size_t first_group = static_cast<size_t>(index) * shape.groups();
  return {static_cast<const uint8_t*>(weight.data) + first_group * shape.group_bytes(),
          weight.scales == nullptr ? nullptr : weight.scales + first_group * kTileOutputs,
          weight.zeros == nullptr ? nullptr : weight.zeros + first_group * kTileOutputs,
          weight.mins == nullptr ? nullptr : weight.mins + first_group * kTileOutputs};
}

// sum (code - zero) x = sum code x - zero sum x: where the sums over a group start.
inline IVec start_of_group(const PackedTile& tile, int group, int vec, int32_t offset) {
  const IVec start = broadcast_int(tile.mins == nullptr ? offset : 0);
  if (tile.zeros == nullptr) return start;
  return multiply(start, widen_bytes(tile.zeros + group * kTileOutputs + vec * kLanes));
}

template <int kRows, int kBits>
inline void packed_rows(const LinearWeight& weight, const PackedShape& shape, int tile_index, const QuantizedRows& x,
                        int first_row, float* y, bool accumulate) {
  constexpr int kStep = kBits == 8 ? 4 : 8;  // inputs in one vector
  const PackedTile tile = packed_tile(weight, shape, tile_index);
  const uint8_t* codes = tile.codes;
  const int8_t* input = x.row(static_cast<size_t>(first_row));
  const size_t input_step = static_cast<size_t>(x.layout.interleave) * 4;

  Vec sums[kRows][kTileVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kTileVecs; ++v) sums[r][v] = zero();
  }
  for (int g = 0; g < x.groups; ++g) {
    const size_t entry = static_cast<size_t>(g) * x.rows + first_row;
    const int32_t* offsets = x.offsets + entry;
    IVec group_sums[kRows][kTileVecs];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kTileVecs; ++v) group_sums[r][v] = start_of_group(tile, g, v, offsets[r]);
    }
    for (int k = 0; k < shape.group; k += kStep, codes += 4 * kTileOutputs) {
      __builtin_prefetch(codes + 2048, 0, 2);
      IVec low[kTileVecs];
      IVec high[kTileVecs];
      for (int v = 0; v < kTileVecs; ++v) {
        const IVec bytes = load_bytes(codes + v * 4 * kLanes);
        low[v] = kBits == 8 ? bytes : low_halves(bytes);
        if (kBits == 4) high[v] = high_halves(bytes);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const IVec four = broadcast_bytes(input + 4 * r);
        for (int v = 0; v < kTileVecs; ++v) group_sums[r][v] = dot4(group_sums[r][v], low[v], four);
      }
      input += input_step;
      if (kBits == 4) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const IVec four = broadcast_bytes(input + 4 * r);
          for (int v = 0; v < kTileVecs; ++v) group_sums[r][v] = dot4(group_sums[r][v], high[v], four);
        }
        input += input_step;
      }
    }
    const float* scales = x.scales + entry;
    for (int v = 0; v < kTileVecs; ++v) {
      const Vec scale = tile.scales == nullptr ? broadcast(1.0f) : load(tile.scales + g * kTileOutputs + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        sums[r][v] = fma(to_floats(group_sums[r][v]), mul(scale, broadcast(scales[r])), sums[r][v]);
      }
      if (tile.mins == nullptr) continue;
      // sum (scale code + min) x: the offsets are minus the sums of x's codes.
      const Vec min = load(tile.mins + g * kTileOutputs + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        sums[r][v] = fma(min, broadcast(-scales[r] * static_cast<float>(offsets[r])), sums[r][v]);
      }
    }
  }

  write_tile(weight, tile_index, 1.0f, sums, first_row, x.rows - first_row, y, accumulate);
}

template <int kBits>
inline void packed_block_bits(const LinearWeight& weight, const QuantizedRows& x, int first_row, int rows,
                              int first_tile, int last_tile, float* y, bool accumulate) {
  const PackedShape shape = packed_shape(weight);
  for_row_groups<kPackedRows>(first_row, rows, first_tile, last_tile, [&](auto count, int tile, int row) {
    packed_rows<count(), kBits>(weight, shape, tile, x, row, y, accumulate);
  });
}

inline void packed_block(const LinearWeight& weight, const QuantizedRows& x, int first_row, int rows, int first_tile,
                         int last_tile, float* y, bool accumulate) {
  if (weight.format == WeightFormat::kInt8) {
    packed_block_bits<8>(weight, x, first_row, rows, first_tile, last_tile, y, accumulate);
  } else {
    packed_block_bits<4>(weight, x, first_row, rows, first_tile, last_tile, y, accumulate);
  }
}

}  // namespace turbomind::TM_ISA
