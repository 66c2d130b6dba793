// Products of rounded activations with 8- and 4-bit weights. Included by kernels_isa.cc only.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/simd.h"
#include "kernels/packed_weight.h"

namespace turbomind::TM_ISA {

inline constexpr int kTileVecs = kTileOutputs / kLanes;  // vectors that hold one value for each output of a tile
inline constexpr int kPackedRows = kTileVecs == 1 ? 8 : kTileVecs == 2 ? 2 : 1;

// Rounds a row to int8 for each group: scale = max |x| / 127, ties to even. Codes beyond in_features are 0.
inline void quantize_row(const float* x, int in_features, int group, int groups, int8_t* codes, float* scales,
                         int32_t* sums) {
  for (int g = 0; g < groups; ++g) {
    const int first = g * group;
    const int count = std::min(group, in_features - first);
    const auto element = [&](int i) {
      return count - i >= kLanes ? load(x + first + i) : load_partial(x + first + i, count - i);
    };
    Vec top = zero();
    Vec probe = zero();  // NaN and infinity must not vanish: they make the scale, and so the row's result, not a number
    for (int i = 0; i < count; i += kLanes) {
      const Vec v = element(i);
      top = max(top, absolute(v));
      probe = fma(v, zero(), probe);
    }
    const float scale = reduce_max(top) / 127.0f + reduce_add(probe);
    const Vec inverse = broadcast(scale > 0 ? 1.0f / scale : 0.0f);
    IVec sum = broadcast_int(0);
    for (int i = 0; i < group; i += kLanes) {
      const Vec v = i < count ? mul(element(i), inverse) : zero();
      int8_t lanes[kLanes];
      sum = add_ints(sum, store_codes(lanes, v));
      std::memcpy(codes + first + i, lanes, static_cast<size_t>(std::min(kLanes, group - i)));
    }
    scales[g] = scale;
    sums[g] = static_cast<int32_t>(reduce_add(to_floats(sum)));
  }
}

template <int kRows, int kBits>
inline void packed_tile(const LinearWeight& weight, const PackedShape& shape, const uint8_t* codes, const half* scales,
                        const uint8_t* zeros, const LinearScratch::View& x, int first_row, Vec sums[kRows][kTileVecs]) {
  const int groups = shape.groups();
  const int features = shape.padded_features();
  constexpr int kStep = kBits == 8 ? 4 : 8;  // inputs in one vector
  const IVec zero_code = broadcast_int(-shape.zero_code());
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kTileVecs; ++v) sums[r][v] = zero();
  }
  for (int g = 0; g < groups; ++g) {
    IVec acc[kRows][kTileVecs];
    for (int r = 0; r < kRows; ++r) {
      const IVec total = broadcast_int(x.sums[static_cast<size_t>(first_row + r) * groups + g]);
      for (int v = 0; v < kTileVecs; ++v) {
        // sum of (code - zero) x = sum of code x - zero sum of x
        acc[r][v] =
            weight.zeros == nullptr
                ? multiply(zero_code, total)
                : multiply(multiply(broadcast_int(-1), widen_bytes(zeros + g * kTileOutputs + v * kLanes)), total);
      }
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
      for (int r = 0; r < kRows; ++r) {
        const int8_t* input = x.codes + static_cast<size_t>(first_row + r) * features + g * shape.group + k;
        const IVec first = broadcast_bytes(input);
        for (int v = 0; v < kTileVecs; ++v) acc[r][v] = dot4(acc[r][v], low[v], first);
        if (kBits == 4) {
          const IVec second = broadcast_bytes(input + 4);
          for (int v = 0; v < kTileVecs; ++v) acc[r][v] = dot4(acc[r][v], high[v], second);
        }
      }
    }
    for (int v = 0; v < kTileVecs; ++v) {
      const Vec scale = load(scales + g * kTileOutputs + v * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const Vec both = mul(scale, broadcast(x.scales[static_cast<size_t>(first_row + r) * groups + g]));
        sums[r][v] = fma(to_floats(acc[r][v]), both, sums[r][v]);
      }
    }
  }
}

template <int kRows, int kBits>
inline void packed_rows(const LinearWeight& weight, const PackedShape& shape, int tile, const LinearScratch::View& x,
                        int first_row, float* y, bool accumulate) {
  const auto groups = static_cast<size_t>(shape.groups());
  const size_t offset = static_cast<size_t>(tile) * groups;
  Vec sums[kRows][kTileVecs];
  packed_tile<kRows, kBits>(weight, shape, static_cast<const uint8_t*>(weight.data) + offset * shape.group_bytes(),
                            weight.scales + offset * kTileOutputs,
                            weight.zeros == nullptr ? nullptr : weight.zeros + offset * kTileOutputs, x, first_row,
                            sums);
  const int first_output = tile * kTileOutputs;
  const int count = std::min(kTileOutputs, weight.out_features - first_output);
  for (int r = 0; r < kRows; ++r) {
    float values[kTileOutputs];
    for (int v = 0; v < kTileVecs; ++v) store(values + v * kLanes, sums[r][v]);
    float* out = y + static_cast<size_t>(first_row + r) * weight.out_features + first_output;
    for (int i = 0; i < count; ++i) {
      const float value = values[i] + (weight.bias != nullptr ? weight.bias[first_output + i] : 0.0f);
      out[i] = accumulate ? out[i] + value : value;
    }
  }
}

template <int kBits>
inline void packed_block_bits(const LinearWeight& weight, const LinearScratch::View& x, int first_row, int rows,
                              int first_tile, int last_tile, float* y, bool accumulate) {
  const PackedShape shape = packed_shape(weight);
  const int end = first_row + rows;
  for (int tile = first_tile; tile < last_tile; ++tile) {
    int row = first_row;
    for (; row + kPackedRows <= end; row += kPackedRows) {
      packed_rows<kPackedRows, kBits>(weight, shape, tile, x, row, y, accumulate);
    }
    if (kPackedRows > 4 && row + 4 <= end) {
      packed_rows<4, kBits>(weight, shape, tile, x, row, y, accumulate);
      row += 4;
    }
    if (kPackedRows > 2 && row + 2 <= end) {
      packed_rows<2, kBits>(weight, shape, tile, x, row, y, accumulate);
      row += 2;
    }
    if (row < end) packed_rows<1, kBits>(weight, shape, tile, x, row, y, accumulate);
  }
}

inline void packed_block(const LinearWeight& weight, const LinearScratch::View& x, int first_row, int rows,
                         int first_tile, int last_tile, float* y, bool accumulate) {
  if (weight.format == WeightFormat::kInt8) {
    packed_block_bits<8>(weight, x, first_row, rows, first_tile, last_tile, y, accumulate);
  } else {
    packed_block_bits<4>(weight, x, first_row, rows, first_tile, last_tile, y, accumulate);
  }
}

}  // namespace turbomind::TM_ISA
