// Products of rows with weights of float8. Included by kernels_isa.cc only.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cpu/linear/float8_quads.h"
#include "kernels/cpu/linear/packed_tile.h"

namespace turbomind::TM_ISA {

// A sum is made in this many parts, which take turns with the inputs: products of bfloat16 take a dozen cycles each,
// during which others can begin. Many rows have enough others, and need the registers: they make one part after the
// other.
inline constexpr int kFloat8Parts = kRegisters == 32 ? 2 : 1;
inline constexpr int kFloat8Rows = kTileVecs == 1 ? 8 : kTileVecs == 2 ? 2 : 1;
inline constexpr int kRowsInTurns = 4;

// Calls visit(part) for each, a std::integral_constant.
template <class Visit>
inline void for_parts(Visit&& visit) {
  visit(std::integral_constant<int, 0>());
  if constexpr (kFloat8Parts == 2) visit(std::integral_constant<int, 1>());
}

// Inputs beyond in_features are 0.
inline void convert_row_to_quads(const float* x, int in_features, int row, const ConvertedRows& converted) {
  const RowsLayout& layout = converted.layout;
  auto* quad = static_cast<Float8Quads::Input*>(converted.values) + layout.offset(static_cast<size_t>(row));
  for (int i = 0; i < static_cast<int>(layout.features); i += 4, quad += 4 * layout.interleave) {
    float four[4] = {};
    if (i < in_features) std::copy_n(x + i, std::min(4, in_features - i), four);
    Float8Quads::store_quad(four, quad);
  }
}

template <int kRows>
inline void float8_rows(const LinearWeight& weight, const PackedShape& shape, int tile_index, const ConvertedRows& x,
                        int first_row, float* y, bool accumulate) {
  const size_t first_group = static_cast<size_t>(tile_index) * shape.groups();
  const auto* quantized = static_cast<const uint8_t*>(weight.data) + first_group * shape.group_bytes();
  const auto* input =
      static_cast<const Float8Quads::Input*>(x.values) + x.layout.offset(static_cast<size_t>(first_row));
  const size_t input_step = static_cast<size_t>(x.layout.interleave) * 4;
  // Without their own scales, all groups are one.
  const bool has_scales = weight.block_scales != nullptr;
  const int groups = has_scales ? shape.groups() : 1;
  const int group_quads = (has_scales ? shape.group : shape.padded_features()) / 4;

  Vec sums[kRows][kTileVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kTileVecs; ++v) sums[r][v] = zero();
  }
  for (int g = 0; g < groups; ++g) {
    QuadSums group_sums[kRows][kTileVecs][kFloat8Parts];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kTileVecs; ++v) {
        for (QuadSums& part : group_sums[r][v]) part = {zero(), zero()};
      }
    }
    const auto add_quad = [&](const uint8_t* quad_bytes, const Float8Quads::Input* x_quad, auto part) {
      for (int v = 0; v < kTileVecs; ++v) {
        Float8Quads quads;
        quads.load(quad_bytes + v * 4 * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) quads.multiply_add(x_quad + 4 * r, group_sums[r][v][part()]);
      }
    };
    constexpr int kStep = kFloat8Parts * 4 * kTileOutputs;
    const uint8_t* end = quantized + static_cast<size_t>(group_quads) * 4 * kTileOutputs;
    if constexpr (kRows <= kRowsInTurns) {
      for (; quantized < end; quantized += kStep, input += kFloat8Parts * input_step) {
        __builtin_prefetch(quantized + 2048, 0, 2);
        for_parts(
            [&](auto part) { add_quad(quantized + part() * 4 * kTileOutputs, input + part() * input_step, part); });
      }
    } else {
      for_parts([&](auto part) {
        const Float8Quads::Input* x_quad = input + part() * input_step;
        for (const uint8_t* quad_bytes = quantized + part() * 4 * kTileOutputs; quad_bytes < end; quad_bytes += kStep) {
          __builtin_prefetch(quad_bytes + 2048, 0, 2);
          add_quad(quad_bytes, x_quad, part);
          x_quad += kFloat8Parts * input_step;
        }
      });
      quantized = end;
      input += group_quads * input_step;
    }
    for (int v = 0; v < kTileVecs; ++v) {
      const Vec scale =
          has_scales ? load(weight.block_scales + (first_group + g) * kTileOutputs + v * kLanes) : broadcast(1.0f);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        Vec total = Float8Quads::outputs_of(group_sums[r][v][0]);
        for (int part = 1; part < kFloat8Parts; ++part) {
          total = add(total, Float8Quads::outputs_of(group_sums[r][v][part]));
        }
        sums[r][v] = fma(total, scale, sums[r][v]);
      }
    }
  }
  write_tile(weight, tile_index, Float8Quads::kFactor, sums, first_row, x.rows - first_row, y, accumulate);
}

inline void float8_block(const LinearWeight& weight, const ConvertedRows& x, int first_row, int rows, int first_tile,
                         int last_tile, float* y, bool accumulate) {
  const PackedShape shape = packed_shape(weight);
  for_row_groups<kFloat8Rows>(first_row, rows, first_tile, last_tile, [&](auto count, int tile, int row) {
    float8_rows<count()>(weight, shape, tile, x, row, y, accumulate);
  });
}

}  // namespace turbomind::TM_ISA
