// Products of many rows with row-major weights of 16 and 32 bits. Included by kernels_isa.cc only.
//
// linear_block.h sums an output in the lanes of a vector, input i in lane i % kLanes, and adds the lanes at the end.
// That costs a third of the time where there are a few hundred inputs. So for many rows, a vector holds one lane of
// kLanes outputs: some of these vectors side by side are a panel of the weight [lanes, chunks of inputs, outputs], made
// once for all rows, and rows of x are [lanes, chunks]. A chunk is what one vector holds of a row: kLanes inputs, or
// kLanes pairs of bfloat16. Each lane is summed over the chunks, and lanes are added in the order of reduce_add:
// results are bitwise those of linear_block.h.
#pragma once

#if defined(__AVX2__)

#include <algorithm>
#include <array>
#include <bit>

#include "base/aligned_buffer.h"
#include "kernels/cpu/linear/linear_block.h"
#include "kernels/cpu/linear/packed_tile.h"
#include "kernels/cpu/linear/transpose.h"

#if defined(__AVX512BF16__)
#include "kernels/cpu/linear/bf16_rows.h"
#endif

namespace turbomind::TM_ISA {

// Vectors of outputs, and rows of x at a time: sums fill three quarters of the registers.
inline constexpr int kPanelVecs = 2;
inline constexpr int kPanelRows = kRegisters == 32 ? 12 : 6;
inline constexpr int kPanelOutputs = kPanelVecs * kLanes;
inline constexpr int kPanelTiles = kPanelOutputs / kTileOutputs;
static_assert(kPanelTiles * kTileOutputs == kPanelOutputs, "panels are of whole tiles");
// From this many rows on, a panel is worth its making.
inline constexpr int kMinRowsOfPanels = kLanes == 16 ? 128 : 48;
// Rows that pass by one panel at most: they are read again for each, from the third-level cache.
inline constexpr int kMaxRowsOfPanels = 64 * kPanelRows;

// In this order two neighbouring lanes are added, then two neighbouring sums, and so on.
inline constexpr auto kLaneOrder = [] {
  if constexpr (kLanes == 16) {
    return std::to_array<int>({0, 8, 4, 12, 1, 9, 5, 13, 2, 10, 6, 14, 3, 11, 7, 15});
  } else {
    return std::to_array<int>({0, 4, 1, 5, 2, 6, 3, 7});
  }
}();
static_assert(kLaneOrder.size() == kLanes);

inline int chunks_of(int in_features, int chunk_inputs) {
  return (in_features + chunk_inputs - 1) / chunk_inputs;
}

// Writes the chunks that load(chunk) returns as lanes [kLanes, chunks], in kLaneOrder; up to kLanes - 1 floats past
// their end change.
template <class Load>
inline void write_lanes(int chunks, float* lanes, Load&& load) {
  // Backwards, so that what a part writes beyond the end of a lane is overwritten by what belongs there.
  for (int first = (chunks - 1) / kLanes * kLanes; first >= 0; first -= kLanes) {
    Vec part[kLanes];
    for (int i = 0; i < kLanes; ++i) part[i] = first + i < chunks ? load(first + i) : zero();
    transpose(part);
    for (int i = 0; i < kLanes; ++i) store(lanes + i * chunks + first, part[kLaneOrder[i]]);
  }
}

// Rows are one after the other, `unit` inputs of a lane together: 2 where these are pairs of bfloat16.
inline RowsPlan panel_plan(const LinearWeight& weight, int rows, int unit) {
  const int blocks = (rows + kMaxRowsOfPanels - 1) / kMaxRowsOfPanels;
  const int groups = (rows + blocks * kPanelRows - 1) / (blocks * kPanelRows);
  const size_t lanes = static_cast<size_t>(chunks_of(weight.in_features, unit * kLanes)) * kLanes;
  return {.kind = RowsPlan::Kind::kWide,
          .layout = {.interleave = 1, .unit = unit, .features = (lanes + kLanes) * unit},
          .block_rows = groups * kPanelRows,
          .block_tiles = kPanelTiles};
}

inline bool is_for_panels(const RowsLayout& layout) {
  return layout.interleave == 1 && layout.unit <= 2;
}

inline void convert_row_for_panels(const float* x, int in_features, int row, const ConvertedRows& converted) {
  const int inputs = converted.layout.unit * kLanes;
  float* lanes =
      static_cast<float*>(converted.values) + converted.layout.offset(static_cast<size_t>(row)) / converted.layout.unit;
  write_lanes(chunks_of(in_features, inputs), lanes, [&](int chunk) {
    const float* source = x + static_cast<size_t>(chunk) * inputs;
    const int count = std::min(inputs, in_features - chunk * inputs);
#if defined(__AVX512BF16__)
    if (inputs == 2 * kLanes) {
      if (count == inputs) return as_lanes(to_bf16s(load(source), load(source + kLanes)));
      alignas(64) bf16 pairs[2 * kLanes] = {};
      round_to_bf16(source, count, pairs);
      return load(reinterpret_cast<const float*>(pairs));
    }
#endif
    return count == kLanes ? load(source) : load_partial(source, count);
  });
}

// Lanes of the outputs from `first` on; outputs and inputs that the weight does not have are 0.
template <class Products>
inline void make_panel(const LinearWeight& weight, int first, int chunks, float* panel) {
  const auto* weights = static_cast<const typename Products::Weight*>(weight.data);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int input = chunk * Products::kInputs;
    const int count = std::min(Products::kInputs, weight.in_features - input);
    for (int vec = 0; vec < kPanelVecs; ++vec) {
      Vec part[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const int output = first + vec * kLanes + i;
        if (output >= weight.out_features) {
          part[i] = zero();
          continue;
        }
        const auto* source = weights + static_cast<size_t>(output) * weight.in_features + input;
        part[i] = as_lanes(count == Products::kInputs ? Products::load(source) : Products::load_partial(source, count));
      }
      transpose(part);
      float* target = panel + static_cast<size_t>(chunk) * kPanelOutputs + vec * kLanes;
      for (int i = 0; i < kLanes; ++i) {
        store(target + static_cast<size_t>(i) * chunks * kPanelOutputs, part[kLaneOrder[i]]);
      }
    }
  }
}

// Asks, in `steps` steps, for the weights of the panel that begins at output `first`.
template <class Products>
inline void prefetch_panel(const LinearWeight& weight, int first, int step, int steps) {
  constexpr size_t kLine = 64;
  const size_t stride = static_cast<size_t>(weight.in_features) * sizeof(typename Products::Weight);
  const int outputs = std::clamp(weight.out_features - first, 0, kPanelOutputs);
  const size_t lines = outputs * stride / kLine;
  const char* begin = static_cast<const char*>(weight.data) + first * stride;
  for (size_t line = lines * step / steps; line < lines * (step + 1) / steps; ++line) {
    __builtin_prefetch(begin + line * kLine, 0, 2);
  }
}

// sums [rows, vectors] of a panel for rows of x that begin `ldx` lanes apart.
template <int kRows, class Products>
inline void panel_rows(const float* panel, int chunks, const float* x, size_t ldx, Vec (&sums)[kRows][kPanelVecs]) {
  constexpr int kLevels = std::countr_zero(static_cast<unsigned>(kLanes));  // of the tree in which lanes are added
  Vec waiting[kLevels][kRows][kPanelVecs];                                  // for as many lanes more
  for (int lane = 0; lane < kLanes; ++lane) {
    for (auto& row : sums) std::fill(std::begin(row), std::end(row), zero());
    for (int chunk = 0; chunk < chunks; ++chunk, panel += kPanelOutputs, ++x) {
      const Vec weights[kPanelVecs] = {load(panel), load(panel + kLanes)};
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const Vec input = broadcast(x[r * ldx]);
        for (int v = 0; v < kPanelVecs; ++v) sums[r][v] = Products::add_lanes(sums[r][v], input, weights[v]);
      }
    }
    int level = 0;
    for (; (lane >> level & 1) != 0; ++level) {
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kPanelVecs; ++v) sums[r][v] = add(sums[r][v], waiting[level][r][v]);
      }
    }
    if (level == kLevels) break;
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kPanelVecs; ++v) waiting[level][r][v] = sums[r][v];
    }
  }
}

template <class Products>
void panel_block_of(const LinearWeight& weight, const ConvertedRows& x, int first_row, int rows, int first_tile,
                    int last_tile, float* y, bool accumulate) {
  static thread_local AlignedBuffer buffer;
  const int chunks = chunks_of(weight.in_features, Products::kInputs);
  float* panel = buffer.reserve<float>(static_cast<size_t>(chunks) * kLanes * kPanelOutputs);
  const size_t ldx = x.layout.features / x.layout.unit;
  prefetch_panel<Products>(weight, first_tile * kTileOutputs, 0, 1);
  for (int tile = first_tile; tile < last_tile; tile += kPanelTiles) {
    make_panel<Products>(weight, tile * kTileOutputs, chunks, panel);
    const auto multiply = [&](auto count, int row) {
      if (tile + kPanelTiles < last_tile) {
        const int next = (tile + kPanelTiles) * kTileOutputs;
        prefetch_panel<Products>(weight, next, (row - first_row) / kPanelRows, (rows + kPanelRows - 1) / kPanelRows);
      }
      Vec sums[count()][kPanelVecs];
      panel_rows<count(), Products>(panel, chunks, static_cast<const float*>(x.values) + row * ldx, ldx, sums);
      for (int t = 0; t < kPanelTiles && tile + t < last_tile; ++t) {
        Vec tile_sums[count()][kTileVecs];
        for (int r = 0; r < count(); ++r) std::copy_n(sums[r] + t * kTileVecs, kTileVecs, tile_sums[r]);
        write_tile(weight, tile + t, 1.0f, tile_sums, row, count(), y, accumulate);
      }
    };
    const int end = first_row + rows;
    int row = first_row;
    for (; row + kPanelRows <= end; row += kPanelRows) multiply(std::integral_constant<int, kPanelRows>(), row);
    for (; row + 4 <= end; row += 4) multiply(std::integral_constant<int, 4>(), row);
    for (; row < end; ++row) multiply(std::integral_constant<int, 1>(), row);
  }
}

inline void panel_block(const LinearWeight& weight, const ConvertedRows& x, int first_row, int rows, int first_tile,
                        int last_tile, float* y, bool accumulate) {
  const auto multiply = [&](auto products) {
    panel_block_of<decltype(products)>(weight, x, first_row, rows, first_tile, last_tile, y, accumulate);
  };
#if defined(__AVX512BF16__)
  if (x.layout.unit == 2) return multiply(PairDots());
#endif
  if (weight.format == WeightFormat::kFloat32) return multiply(FloatDots<float>());
  if (weight.format == WeightFormat::kFloat16) return multiply(FloatDots<half>());
  multiply(FloatDots<bf16>());
}

}  // namespace turbomind::TM_ISA

#endif
