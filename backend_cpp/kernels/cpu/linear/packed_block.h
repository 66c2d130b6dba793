// Products of rounded activations with weights of 4 to 8 bits. Included by kernels_isa.cc only.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/aligned_buffer.h"
#include "kernels/cpu/linear/packed_tile.h"

namespace turbomind::TM_ISA {

// Whether products with codes of less than 8 bits are added up in 16 bits first, and of how many inputs: of 4 bits they
// are at most 15 x 127 each, so eight pairs fit, of 5 bits four and of 6 bits two.
inline constexpr bool kSumsInt16 = !kHasDot4;
template <int kBits>
inline constexpr int kInputsInInt16 = kBits == 4   ? 32
                                      : kBits == 5 ? 16
                                                   : 8;

// Rows at a time, so that their sums stay in registers. With 16-bit sums, those of 32 bits need not.
template <int kBits>
inline constexpr int kPackedRows = kTileVecs == 1     ? 8
                                   : kTileVecs == 2   ? (kBits < 8 && kSumsInt16 ? 4 : 2)
                                   : kRegisters == 32 ? (kSumsInt16 ? 2 : 4)
                                                      : 1;
// Where there are more rows than that: tiles at a time, and rows. A vector of x is multiplied with each of them, and
// both kinds of sums stay in registers.
inline constexpr int kPackedTiles = kTileVecs == 1 ? 3 : 1;
template <int kBits>
inline constexpr int kPackedTileRows = kTileVecs == 1 ? 4 : kPackedRows<kBits>;

// Where a row's codes go: `unit` of them together, then those of other rows, then the next.
class QuantizedTarget {
 public:
  QuantizedTarget(int8_t* quantized, const RowsLayout& layout)
      : quantized_(quantized), unit_(layout.unit), gap_(static_cast<size_t>(layout.unit) * (layout.interleave - 1)) {}

  // Puts `count` codes, a multiple of four; where kUnit is not 0, it is the layout's.
  template <int kUnit>
  void put(const int8_t* lanes, int count) {
    const int unit = kUnit != 0 ? kUnit : unit_;
    for (int lane = 0; lane < count; lane += 4) {
      std::memcpy(quantized_, lanes + lane, 4);
      quantized_ += 4;
      if ((in_unit_ += 4) == unit) {
        quantized_ += gap_;
        in_unit_ = 0;
      }
    }
  }

 private:
  int8_t* quantized_;
  int unit_;
  size_t gap_;
  int in_unit_ = 0;
};

// Rounds a group, of which `count` inputs are there and the others are 0; kIsWhole: all are, in whole vectors. Returns
// the scale and the sum of the codes.
template <bool kIsWhole, int kUnit>
inline std::pair<float, int32_t> quantize_group(const float* source, int count, int group, QuantizedTarget& target) {
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
    sum = add_ints(sum, store_quantized(lanes, mul(element(i), inverse)));
    target.put<kUnit>(lanes, kIsWhole ? kLanes : std::min(kLanes, group - i));
  }
  return {scale, static_cast<int32_t>(reduce_add(to_floats(sum)))};
}

// scale = max |x| / 127 of a group, ties to even. Codes beyond in_features are 0.
template <int kUnit>
inline void quantize_groups(const float* x, int in_features, int group, int row, const QuantizedRows& rounded) {
  QuantizedTarget target(rounded.row(static_cast<size_t>(row)), rounded.layout);
  const size_t first_entry = rounded.entry(static_cast<size_t>(row));
  for (int g = 0; g < rounded.groups; ++g) {
    const float* source = x + static_cast<size_t>(g) * group;
    const int count = std::min(group, in_features - g * group);
    const auto [scale, sum] = count == group && group % kLanes == 0
                                  ? quantize_group<true, kUnit>(source, count, group, target)
                                  : quantize_group<false, kUnit>(source, count, group, target);
    const size_t entry = first_entry + static_cast<size_t>(g) * rounded.layout.interleave;
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

// Scales or minima of adjacent tiles, [tiles, groups, 16].
struct GroupScales {
  const half* halves = nullptr;     // [tiles, groups / shared, 16] where there are factors; null: none
  const int8_t* factors = nullptr;  // null: none
  int shared_log2 = 0;
  const float* products = nullptr;  // written before, for many rows

  Vec at(size_t group, int lane) const {
    const size_t index = group * kTileOutputs + lane;
    if (products != nullptr) return load(products + index);
    if (factors == nullptr) return load(halves + index);
    return mul(load(halves + (group >> shared_log2) * kTileOutputs + lane), to_floats(upcast_bytes(factors + index)));
  }
  // Multiplies halves and factors once for all rows.
  void write_products(size_t groups, AlignedBuffer& buffer) {
    if (factors == nullptr) return;
    auto* written = buffer.reserve<float>(groups * kTileOutputs);
    for (size_t group = 0; group < groups; ++group) {
      for (int i = 0; i < kTileOutputs; i += kLanes) store(written + group * kTileOutputs + i, at(group, i));
    }
    products = written;
  }
};

inline GroupScales group_scales(const half* halves, const PackedShape& shape, size_t first_group) {
  if (halves == nullptr) return {};
  if (shape.scale_groups == 1) return {halves + first_group * kTileOutputs};
  const int shared_log2 = std::countr_zero(static_cast<unsigned>(shape.scale_groups));
  return {halves + (first_group >> shared_log2) * kTileOutputs,
          group_factors(shape, halves) + first_group * kTileOutputs, shared_log2};
}

// Adjacent tiles of a packed weight.
struct PackedTile {
  const uint8_t* quantized;
  GroupScales scales;
  const uint8_t* zeros;  // [tiles, groups, 16] or null
  GroupScales mins;
};

inline PackedTile packed_tile(const LinearWeight& weight, const PackedShape& shape, int index) {
  const size_t first_group = static_cast<size_t>(index) * shape.groups();
  return {static_cast<const uint8_t*>(weight.data) + first_group * shape.group_bytes(),
          group_scales(weight.scales, shape, first_group),
          weight.zeros == nullptr ? nullptr : weight.zeros + first_group * kTileOutputs,
          group_scales(weight.mins, shape, first_group)};
}

// `tiles` tiles for many rows, with the products of their scales, which last until the thread's next call.
inline PackedTile packed_tiles(const LinearWeight& weight, const PackedShape& shape, int first, int tiles) {
  static thread_local AlignedBuffer scales;
  static thread_local AlignedBuffer mins;
  PackedTile result = packed_tile(weight, shape, first);
  result.scales.write_products(static_cast<size_t>(tiles) * shape.groups(), scales);
  result.mins.write_products(static_cast<size_t>(tiles) * shape.groups(), mins);
  return result;
}

inline constexpr size_t kQuadBytes = static_cast<size_t>(4) * kTileOutputs;  // 8-bit codes of a tile for four inputs

// Vectors of 4-bit parts that share one of higher bits.
template <int kBits>
inline constexpr int kUnitSteps = kBits == 5   ? 4
                                  : kBits == 6 ? 2
                                               : 1;

// Codes of eight inputs, of less than 8 bits: of the first four, and of the other four times 2^(8 - kBits). kStep:
// their place in the unit.
template <int kBits, int kStep>
inline void decode_step(const uint8_t* quantized, IVec& first, IVec& scaled) {
  const IVec bytes = load_bytes(quantized);
  first = masked_bytes<0x0F>(bytes);
  scaled = masked_bytes<0xF0>(bytes);
  if constexpr (kBits > 4) {
    constexpr int kRest = kBits - 4;
    constexpr int kMask = (1 << kRest) - 1;
    const IVec rest = load_bytes(quantized + (kUnitSteps<kBits> - kStep) * kQuadBytes);
    first = with_masked_bytes<kMask << 4>(first, shift_bytes<kRest * 2 * kStep - 4>(rest));
    scaled = with_masked_bytes<kMask << (8 - kBits)>(scaled, shift_bytes<kRest * (2 * kStep + 1) - (8 - kBits)>(rest));
  }
}

// Calls body(std::integral_constant) for kFirst .. kLast - 1.
template <int kFirst, int kLast, class Body>
inline void for_steps(Body&& body) {
  if constexpr (kFirst < kLast) {
    body(std::integral_constant<int, kFirst>());
    for_steps<kFirst + 1, kLast>(body);
  }
}

// The codes of adjacent tiles of less than 8 bits as those of 8-bit tiles.
template <int kBits>
inline void unpack_tiles(const uint8_t* quantized, const PackedShape& shape, int tiles, uint8_t* unpacked) {
  const int units = tiles * (shape.padded_features() / shape.unit());
  for (int unit = 0; unit < units; ++unit) {
    for_steps<0, kUnitSteps<kBits>>([&](auto step) {
      for (size_t at = 0; at < kQuadBytes; at += sizeof(IVec)) {
        IVec first;
        IVec second;
        decode_step<kBits, step()>(quantized + at, first, second);
        second = shift_bytes<8 - kBits>(second);
        std::memcpy(unpacked + at, &first, sizeof(first));
        std::memcpy(unpacked + kQuadBytes + at, &second, sizeof(second));
      }
      quantized += kQuadBytes;
      unpacked += 2 * kQuadBytes;
    });
    if (kBits > 4) quantized += kQuadBytes;
  }
}

// How codes become values: scale (code - zero) with one zero for all, or one for each group, or scale code + min.
enum class QuantizedKind : uint8_t { kScaled, kShifted, kWithMins };

// Whether scaled codes have sums of their own, which are shifted in place of each vector of codes. NEON multiplies
// bytes above 127 slowly.
template <int kSums>
inline constexpr bool kSumsScaled = kHasDot4 && kLanes > 4 && kSums <= 4;

// Asks for a group of the tiles that come after these.
template <int kTiles>
inline void prefetch_group(const uint8_t* quantized, size_t tile_bytes, size_t group_bytes) {
  constexpr size_t kLine = 64;
  for (int t = 0; t < kTiles; ++t) {
    const uint8_t* group = quantized + (kTiles + t) * tile_bytes;
    for (size_t line = 0; line < group_bytes; line += kLine) __builtin_prefetch(group + line, 0, 2);
  }
}

// y of kTiles tiles for kRows adjacent rows from first_row on, some of which may be missing. Codes of `tile` have kBits
// bits, which may be more than those of the weight. is_first: the first rows that meet these tiles.
template <int kRows, int kTiles, int kBits, QuantizedKind kKind>
inline void packed_rows(const LinearWeight& weight, const PackedShape& shape, const PackedTile& tile, int first_tile,
                        bool is_first, const QuantizedRows& x, int first_row, float* y, bool accumulate) {
  constexpr int kStep = kBits == 8 ? 4 : 8;  // inputs in one vector
  constexpr int kVecs = kTiles * kTileVecs;
  const uint8_t* quantized = tile.quantized;
  const size_t group_bytes = static_cast<size_t>(kTileOutputs) * shape.group * kBits / 8;
  const size_t tile_bytes = group_bytes * shape.groups();
  const int8_t* input = x.row(static_cast<size_t>(first_row));
  const size_t input_step = static_cast<size_t>(x.layout.interleave) * 4;
  size_t entry = x.entry(static_cast<size_t>(first_row));

  Vec sums[kRows][kVecs];
#pragma GCC unroll 8
  for (auto& row : sums) {
#pragma GCC unroll 8
    for (auto& sum : row) sum = zero();
  }
  for (int g = 0; g < x.groups; ++g, entry += x.layout.interleave) {
    const auto group_of = [&](int vec) { return static_cast<size_t>(vec / kTileVecs) * shape.groups() + g; };
    const auto lane_of = [](int vec) { return vec % kTileVecs * kLanes; };
    const int32_t* offsets = x.offsets + entry;
    // sum (code - zero) x = sum code x - zero sum x: where the sums over a group start.
    IVec group_sums[kRows][kVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        group_sums[r][v] = broadcast_int(kKind == QuantizedKind::kWithMins ? 0 : offsets[r]);
        if (kKind == QuantizedKind::kShifted) {
          group_sums[r][v] =
              multiply(group_sums[r][v], upcast_bytes(tile.zeros + group_of(v) * kTileOutputs + lane_of(v)));
        }
      }
    }
    constexpr bool kIsScaled = kBits < 8 && kSumsScaled<kRows * kVecs>;
    IVec scaled_sums[kRows][kVecs];
#pragma GCC unroll 8
    for (auto& row : scaled_sums) std::fill(std::begin(row), std::end(row), broadcast_int(0));
    const auto multiply = [&](const IVec(&vectors)[kVecs], auto&& dot, IVec(&to)[kRows][kVecs]) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const IVec four = broadcast_bytes(input + 4 * r);
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) to[r][v] = dot(to[r][v], vectors[v], four);
      }
      input += input_step;
    };
    const auto pass_vector = [&] {
      if (kTiles == 1) __builtin_prefetch(quantized + 2048, 0, 2);
      quantized += kQuadBytes;
    };
    // Adds the products of the next kStep inputs.
    const auto add_step = [&](auto step, auto&& dot, IVec(&to)[kRows][kVecs]) {
      IVec low[kVecs];
      IVec high[kVecs];
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) {
        const uint8_t* step_bytes = quantized + v / kTileVecs * tile_bytes + v % kTileVecs * 4 * kLanes;
        if constexpr (kBits == 8) {
          low[v] = load_bytes(step_bytes);
        } else {
          decode_step<kBits, step()>(step_bytes, low[v], high[v]);
          if (!kIsScaled) high[v] = shift_bytes<8 - kBits>(high[v]);
        }
      }
      multiply(low, dot, to);
      if constexpr (kIsScaled) {
        multiply(high, [](auto... operands) { return dot4(operands...); }, scaled_sums);
      } else if (kBits < 8) {
        multiply(high, dot, to);
      }
      pass_vector();
    };
    // Adds what `add` adds up in 16 bits.
    const auto sum_int16 = [&](auto&& add) {
      IVec int16_sums[kRows][kVecs];
#pragma GCC unroll 8
      for (auto& row : int16_sums) std::fill(std::begin(row), std::end(row), broadcast_int(0));
      // Declared only without kHasDot4.
      const auto dot2 = [](auto... operands) { return dot2_bytes(operands...); };
      const auto add_pairs = [](auto... operands) { return add_int16_pairs(operands...); };
      add([&](auto step) { add_step(step, dot2, int16_sums); });
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) group_sums[r][v] = add_pairs(group_sums[r][v], int16_sums[r][v]);
      }
    };
    constexpr std::integral_constant<int, 0> kFirstStep;
    constexpr int kSteps = kUnitSteps<kBits>;
    if (kTiles > 1 && is_first) prefetch_group<kTiles>(quantized, tile_bytes, group_bytes);
    for (int k = 0; k < shape.group;) {
      if constexpr (kBits == 8 || !kSumsInt16) {
        const auto dot = [](auto... operands) { return kBits < 8 ? dot4_small(operands...) : dot4(operands...); };
        for_steps<0, kSteps>([&](auto step) { add_step(step, dot, group_sums); });
        k += kSteps * kStep;
      } else if constexpr (kBits == 4) {
        const int last = std::min(shape.group, k + kInputsInInt16<kBits>);
        sum_int16([&](auto&& add) {
          for (; k < last; k += kStep) add(kFirstStep);
        });
      } else {
        constexpr int kTogether = kInputsInInt16<kBits> / kStep;
        for_steps<0, kSteps / kTogether>([&](auto part) {
          sum_int16([&](auto&& add) { for_steps<part() * kTogether, (part() + 1) * kTogether>(add); });
        });
        k += kSteps * kStep;
      }
      if (kBits == 5 || kBits == 6) pass_vector();
    }
    if constexpr (kIsScaled) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) {
          group_sums[r][v] = add_ints(group_sums[r][v], shift_ints<8 - kBits>(scaled_sums[r][v]));
        }
      }
    }
    const float* x_scales = x.scales + entry;
    Vec scales[kVecs];
    Vec mins[kVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      scales[v] = tile.scales.halves == nullptr ? broadcast(1.0f) : tile.scales.at(group_of(v), lane_of(v));
      if (kKind == QuantizedKind::kWithMins) mins[v] = tile.mins.at(group_of(v), lane_of(v));
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec x_scale = broadcast(x_scales[r]);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) {
        sums[r][v] = fma(to_floats(group_sums[r][v]), mul(scales[v], x_scale), sums[r][v]);
      }
      if (kKind != QuantizedKind::kWithMins) continue;
      // sum (scale code + min) x: the offsets are minus the sums of x's codes.
      const Vec total = broadcast(-x_scales[r] * static_cast<float>(offsets[r]));
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) sums[r][v] = fma(mins[v], total, sums[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < kTiles; ++t) {
    Vec tile_sums[kRows][kTileVecs];
    for (int r = 0; r < kRows; ++r) std::copy_n(sums[r] + t * kTileVecs, kTileVecs, tile_sums[r]);
    write_tile(weight, first_tile + t, 1.0f, tile_sums, first_row, x.rows - first_row, y, accumulate);
  }
}

template <int kBits, QuantizedKind kKind>
inline void packed_block_of(const LinearWeight& weight, const QuantizedRows& x, int first_row, int rows, int first_tile,
                            int last_tile, float* y, bool accumulate) {
  const PackedShape shape = packed_shape(weight);
  int tile = first_tile;
  if (rows > kPackedRows<kBits>) {
    // Higher bits cost more than a product: they are put in once for all rows.
    constexpr int kMultiplied = (kBits == 5 || kBits == 6) && kHasDot4 ? 8 : kBits;
    for (; tile + kPackedTiles <= last_tile; tile += kPackedTiles) {
      PackedTile tiles = packed_tiles(weight, shape, tile, kPackedTiles);
      if constexpr (kMultiplied != kBits) {
        static thread_local AlignedBuffer unpacked;
        auto* unpacked_tiles =
            unpacked.reserve<uint8_t>(static_cast<size_t>(kPackedTiles) * shape.padded_features() * kTileOutputs);
        unpack_tiles<kBits>(tiles.quantized, shape, kPackedTiles, unpacked_tiles);
        tiles.quantized = unpacked_tiles;
      }
      for (int row = first_row; row < first_row + rows; row += kPackedTileRows<kMultiplied>) {
        packed_rows<kPackedTileRows<kMultiplied>, kPackedTiles, kMultiplied, kKind>(
            weight, shape, tiles, tile, kMultiplied == kBits && row == first_row, x, row, y, accumulate);
      }
    }
  }
  for_row_groups<kPackedRows<kBits>>(first_row, rows, tile, last_tile, [&](auto count, int first_of_group, int row) {
    packed_rows<count(), 1, kBits, kKind>(weight, shape, packed_tile(weight, shape, first_of_group), first_of_group,
                                          row == first_row, x, row, y, accumulate);
  });
}

template <int kBits>
inline void packed_block_bits(const LinearWeight& weight, const QuantizedRows& x, int first_row, int rows,
                              int first_tile, int last_tile, float* y, bool accumulate) {
  const auto multiply = weight.mins != nullptr    ? packed_block_of<kBits, QuantizedKind::kWithMins>
                        : weight.zeros != nullptr ? packed_block_of<kBits, QuantizedKind::kShifted>
                                                  : packed_block_of<kBits, QuantizedKind::kScaled>;
  multiply(weight, x, first_row, rows, first_tile, last_tile, y, accumulate);
}

inline void packed_block(const LinearWeight& weight, const QuantizedRows& x, int first_row, int rows, int first_tile,
                         int last_tile, float* y, bool accumulate) {
  const auto multiply = weight.format == WeightFormat::kInt4   ? packed_block_bits<4>
                        : weight.format == WeightFormat::kInt5 ? packed_block_bits<5>
                        : weight.format == WeightFormat::kInt6 ? packed_block_bits<6>
                                                               : packed_block_bits<8>;
  multiply(weight, x, first_row, rows, first_tile, last_tile, y, accumulate);
}

}  // namespace turbomind::TM_ISA
