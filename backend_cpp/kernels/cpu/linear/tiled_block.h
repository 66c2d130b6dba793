// Products of rows with tiled weights of 16 and 32 bits. Included by kernels_isa.cc only.
//
// An output is summed input by input, or pair by pair, in one lane, whatever the rows beside it.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/cpu/linear/packed_tile.h"

#if defined(__AVX512BF16__)
#include "kernels/cpu/linear/bf16_rows.h"
#endif

namespace turbomind::TM_ISA {

// Sums of rows by outputs fill three quarters of the registers. Six rows by four vectors are loaded with fewer
// instructions than twelve by two, and lie in fewer ways of a cache where a row's length is a power of two.
inline constexpr int kTiledTiles = kLanes == 16 ? 4 : 1;
inline constexpr int kTiledRows = 3 * kRegisters / 4 / (kTiledTiles * kTileVecs);
// Up to this many rows, more tiles side by side where the registers hold them.
inline constexpr int kFewTiledRows = std::max(1, kTiledRows / 3);
inline constexpr int kFewRowsTiles = std::max(2, kTiledTiles);
inline constexpr size_t kTiledAhead = 2048;  // bytes of a tile that are prefetched
// Rows that pass by one tile at most: they stay in the second-level cache, and threads have more chunks to share.
inline constexpr int kMaxTiledRows = 192 / kTiledRows * kTiledRows;

// Numbers of a row in a cache line.
inline constexpr int kFloatLine = 16;
inline constexpr int kBf16Line = 32;

// Numbers of a weight of W and float32 rows.
template <class W>
struct FloatUnit {
  using Weight = W;
  using Input = float;
  static constexpr int kInputs = 1;  // of an output that are adjacent
  static constexpr int kParts = 1;   // in which they are multiplied

  static Vec input(const float* x, int) { return broadcast(*x); }
  static Vec weight(const W* w, int) { return load(w); }
  static Vec add(Vec sum, Vec x, Vec w) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(x), "x"(w));  // GCC 12 spills the sums that it has for the intrinsic
    return sum;
#else
    return fma(x, w, sum);
#endif
  }
};

// Pairs of bfloat16 and float32 rows.
struct WidenedPair : FloatUnit<bf16> {
  static constexpr int kInputs = 2;
  static constexpr int kParts = 2;

  static Vec input(const float* x, int part) { return broadcast(x[part]); }
  static Vec weight(const bf16* w, int part) {
    const IVec pairs = load_bytes(reinterpret_cast<const uint8_t*>(w));
    return part == 0 ? low_bf16(pairs) : high_bf16(pairs);
  }
};

#if defined(__AVX512BF16__)
// Pairs of bfloat16 and rows rounded to it.
struct RoundedPair {
  using Weight = bf16;
  using Input = bf16;
  static constexpr int kInputs = 2;
  static constexpr int kParts = 1;

  static Vec input(const bf16* x, int) {
    float pair;
    std::memcpy(&pair, x, sizeof(pair));
    return broadcast(pair);
  }
  static Vec weight(const bf16* w, int) { return load(reinterpret_cast<const float*>(w)); }
  static Vec add(Vec sum, Vec x, Vec w) { return dot2(sum, as_ints(x), as_ints(w)); }
};
#endif

template <int kRows, int kTiles, class Unit>
inline void tiled_rows(const LinearWeight& weight, const ConvertedRows& x, int first_row, int first_tile, float* y,
                       bool accumulate) {
  constexpr int kVecs = kTiles * kTileVecs;
  constexpr int kStep = kTileOutputs * Unit::kInputs;
  const int steps = (weight.in_features + Unit::kInputs - 1) / Unit::kInputs;
  const size_t tile_size = static_cast<size_t>(steps) * kStep;
  const auto* w = static_cast<const typename Unit::Weight*>(weight.data) + first_tile * tile_size;
  const size_t ldx = x.layout.features;
  const auto* input = static_cast<const typename Unit::Input*>(x.values) + first_row * ldx;
  Vec sums[kRows][kVecs];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) sums[r][v] = zero();
  }
  for (int step = 0; step < steps; ++step, w += kStep, input += Unit::kInputs) {
#pragma GCC unroll 4
    for (int t = 0; t < kTiles; ++t) __builtin_prefetch(w + t * tile_size + kTiledAhead / sizeof(*w), 0, 2);
#pragma GCC unroll 2
    for (int part = 0; part < Unit::kParts; ++part) {
      Vec weights[kVecs];
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) {
        weights[v] = Unit::weight(w + v / kTileVecs * tile_size + v % kTileVecs * kLanes * Unit::kInputs, part);
      }
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const Vec value = Unit::input(input + r * ldx, part);
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) sums[r][v] = Unit::add(sums[r][v], value, weights[v]);
      }
    }
  }
#pragma GCC unroll 4
  for (int t = 0; t < kTiles; ++t) {
    Vec tile_sums[kRows][kTileVecs];
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kTileVecs; ++v) tile_sums[r][v] = sums[r][t * kTileVecs + v];
    }
    write_tile(weight, first_tile + t, 1.0f, tile_sums, first_row, kRows, y, accumulate);
  }
}

// Rows [row, end) by kTiles tiles: kRows at a time, then those left.
template <int kRows, int kTiles, class Unit>
inline void tiled_row_groups(const LinearWeight& weight, const ConvertedRows& x, int row, int end, int first_tile,
                             float* y, bool accumulate) {
  for (; row + kRows <= end; row += kRows) {
    tiled_rows<kRows, kTiles, Unit>(weight, x, row, first_tile, y, accumulate);
  }
  constexpr int kLeft = kRows > 8 ? 8 : kRows > 4 ? 4 : kRows / 2;
  if constexpr (kLeft > 0) {
    if (row < end) tiled_row_groups<kLeft, kTiles, Unit>(weight, x, row, end, first_tile, y, accumulate);
  }
}

template <class Unit>
void tiled_block_of(const LinearWeight& weight, const ConvertedRows& x, int first_row, int rows, int first_tile,
                    int last_tile, float* y, bool accumulate) {
  const int end = first_row + rows;
  int tile = first_tile;
  if (kFewRowsTiles > kTiledTiles && rows < 2 * kFewTiledRows) {
    for (; tile + kFewRowsTiles <= last_tile; tile += kFewRowsTiles) {
      tiled_row_groups<kFewTiledRows, kFewRowsTiles, Unit>(weight, x, first_row, end, tile, y, accumulate);
    }
  }
  for (; tile + kTiledTiles <= last_tile; tile += kTiledTiles) {
    tiled_row_groups<kTiledRows, kTiledTiles, Unit>(weight, x, first_row, end, tile, y, accumulate);
  }
  for (; tile < last_tile; ++tile) {
    tiled_row_groups<kTiledRows, 1, Unit>(weight, x, first_row, end, tile, y, accumulate);
  }
}

inline bool rounds_to_pairs([[maybe_unused]] const LinearWeight& weight) {
#if defined(__AVX512BF16__)
  return weight.format == WeightFormat::kBFloat16;
#else
  return false;
#endif
}

// Rows one after the other, each in whole lines of `line` numbers. The line tells their type.
inline RowsLayout lines_layout(int in_features, int line) {
  const auto lines = (static_cast<size_t>(in_features) + line - 1) / line;
  return {.interleave = 1, .unit = line, .features = lines * line};
}

inline RowsPlan tiled_plan(const LinearWeight& weight, int rows) {
  const int blocks = (rows + kMaxTiledRows - 1) / kMaxTiledRows;
  const int groups = (rows + blocks * kTiledRows - 1) / (blocks * kTiledRows);
  return {.kind = RowsPlan::Kind::kWide,
          .layout = lines_layout(weight.in_features, rounds_to_pairs(weight) ? kBf16Line : kFloatLine),
          .block_rows = groups * kTiledRows,
          .block_tiles = rows < 2 * kFewTiledRows ? kFewRowsTiles : kTiledTiles};
}

// A row as it is, and zeros beyond it.
inline void copy_row(const float* x, int in_features, int row, const ConvertedRows& converted) {
  float* values = static_cast<float*>(converted.values) + converted.layout.offset(static_cast<size_t>(row));
  std::fill(std::copy_n(x, in_features, values), values + converted.layout.features, 0.0f);
}

inline void tiled_block(const LinearWeight& weight, const ConvertedRows& x, int first_row, int rows, int first_tile,
                        int last_tile, float* y, bool accumulate) {
  const auto multiply = [&](auto unit) {
    tiled_block_of<decltype(unit)>(weight, x, first_row, rows, first_tile, last_tile, y, accumulate);
  };
  if (weight.format == WeightFormat::kFloat32) return multiply(FloatUnit<float>());
  if (weight.format == WeightFormat::kFloat16) return multiply(FloatUnit<half>());
#if defined(__AVX512BF16__)
  multiply(RoundedPair());
#else
  multiply(WidenedPair());
#endif
}

}  // namespace turbomind::TM_ISA
