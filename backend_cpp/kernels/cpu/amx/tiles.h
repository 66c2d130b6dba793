// AMX tiles: eight matrices of up to 16 rows of 64 bytes (Intel SDM, volume 1, chapter 18; volume 2, TILELOADD,
// TDPBSSD, TDPBSUD, TDPBF16PS). Included by kernels_isa.cc only.
//
// A product takes A [m, k], B [k, n] and C [m, n]. A's rows are plain. B's row i holds, for each of the n columns, the
// inputs that fill 32 bits: 4 i to 4 i + 3 of bytes, 2 i and 2 i + 1 of bfloat16.
//
// With TM_EMULATED_TILES plain code stands for the instructions, bit for bit, on any processor.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/types.h"

namespace turbomind::TM_ISA {

inline constexpr int kTileSide = 16;
inline constexpr int kTileBytes = 64;
inline constexpr int kTileCount = 8;

// Shape of a thread's tiles; the layout is the one LDTILECFG reads.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  constexpr TileShapes& set(int tile, int row_count, int bytes) {
    rows[tile] = static_cast<uint8_t>(row_count);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
    return *this;
  }
};
static_assert(sizeof(TileShapes) == 64);

#if defined(TM_EMULATED_TILES)

struct EmulatedTiles {
  TileShapes shapes;
  alignas(64) uint8_t data[kTileCount][kTileSide][kTileBytes];
};

inline EmulatedTiles& emulated_tiles() {
  static thread_local EmulatedTiles tiles;
  return tiles;
}

inline void configure_tiles(const TileShapes& shapes) {
  EmulatedTiles& tiles = emulated_tiles();
  tiles.shapes = shapes;
  std::memset(tiles.data, 0, sizeof(tiles.data));
}
inline void release_tiles() {
  configure_tiles(TileShapes());
}

template <int kTile>
inline void tile_zero() {
  std::memset(emulated_tiles().data[kTile], 0, sizeof(emulated_tiles().data[kTile]));
}
template <int kTile>
inline void tile_load(const void* source, size_t stride) {
  EmulatedTiles& tiles = emulated_tiles();
  tile_zero<kTile>();
  for (int row = 0; row < tiles.shapes.rows[kTile]; ++row) {
    std::memcpy(tiles.data[kTile][row], static_cast<const uint8_t*>(source) + row * stride,
                tiles.shapes.row_bytes[kTile]);
  }
}
template <int kTile>
inline void tile_store(void* target, size_t stride) {
  EmulatedTiles& tiles = emulated_tiles();
  for (int row = 0; row < tiles.shapes.rows[kTile]; ++row) {
    std::memcpy(static_cast<uint8_t*>(target) + row * stride, tiles.data[kTile][row], tiles.shapes.row_bytes[kTile]);
  }
}

// Calls visit(C's element, A's four bytes, B's four bytes) for each row of A, each of its 32 bits, and each column.
template <int kC, int kA, int kB, class Element, class Visit>
inline void for_tile_dots(Visit&& visit) {
  EmulatedTiles& tiles = emulated_tiles();
  const TileShapes& shapes = tiles.shapes;
  for (int m = 0; m < shapes.rows[kC]; ++m) {
    auto* c = reinterpret_cast<Element*>(tiles.data[kC][m]);
    for (int k = 0; k < shapes.row_bytes[kA] / 4; ++k) {
      for (int n = 0; n < shapes.row_bytes[kC] / 4; ++n) {
        visit(c[n], tiles.data[kA][m] + 4 * k, tiles.data[kB][k] + 4 * n);
      }
    }
  }
}

template <int kC, int kA, int kB>
inline void tile_dot_signed() {
  for_tile_dots<kC, kA, kB, int32_t>([](int32_t& c, const uint8_t* a, const uint8_t* b) {
    for (int i = 0; i < 4; ++i) c += static_cast<int8_t>(a[i]) * static_cast<int8_t>(b[i]);
  });
}
template <int kC, int kA, int kB>
inline void tile_dot_unsigned() {
  for_tile_dots<kC, kA, kB, int32_t>([](int32_t& c, const uint8_t* a, const uint8_t* b) {
    for (int i = 0; i < 4; ++i) c += static_cast<int8_t>(a[i]) * static_cast<int32_t>(b[i]);
  });
}

// Subnormal numbers count as zeros, before and after.
inline float flushed(float value) {
  return std::fabs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value;
}

// The first and the second products of each pair gather apart, in order, and are added to C in the end.
template <int kC, int kA, int kB>
inline void tile_dot_bf16() {
  EmulatedTiles& tiles = emulated_tiles();
  const TileShapes& shapes = tiles.shapes;
  const auto pair = [](const uint8_t* row, int index, float (&values)[2]) {
    bf16 bits[2];
    std::memcpy(bits, row + 4 * index, sizeof(bits));
    for (int i = 0; i < 2; ++i) values[i] = flushed(to_float(bits[i]));
  };
  for (int m = 0; m < shapes.rows[kC]; ++m) {
    float sums[kTileSide][2] = {};
    const int columns = shapes.row_bytes[kC] / 4;
    for (int k = 0; k < shapes.row_bytes[kA] / 4; ++k) {
      float a[2];
      pair(tiles.data[kA][m], k, a);
      for (int n = 0; n < columns; ++n) {
        float b[2];
        pair(tiles.data[kB][k], n, b);
        for (int i = 0; i < 2; ++i) sums[n][i] = flushed(std::fma(a[i], b[i], sums[n][i]));
      }
    }
    auto* c = reinterpret_cast<float*>(tiles.data[kC][m]);
    for (int n = 0; n < columns; ++n) c[n] = flushed(flushed(c[n]) + flushed(sums[n][0] + sums[n][1]));
  }
}

#else

// Inline assembly rather than GCC's intrinsics, which want tiles by literal number.

inline void configure_tiles(const TileShapes& shapes) {
  asm volatile("ldtilecfg %0" ::"m"(shapes));
}
inline void release_tiles() {
  asm volatile("tilerelease" ::: "memory");
}
template <int kTile>
inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kTile>
inline void tile_load(const void* source, size_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(source), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
inline void tile_store(void* target, size_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(target), "r"(stride), "i"(kTile) : "memory");
}
template <int kC, int kA, int kB>
inline void tile_dot_signed() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
}
template <int kC, int kA, int kB>
inline void tile_dot_unsigned() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
}
template <int kC, int kA, int kB>
inline void tile_dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
}

#endif

// Tiles in the given shapes while it lives. Not kept from block to block: other libraries on a thread set theirs.
class TileScope {
 public:
  explicit TileScope(const TileShapes& shapes) { configure_tiles(shapes); }
  ~TileScope() { release_tiles(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

}  // namespace turbomind::TM_ISA
