// Emulation of the instructions in kernels/cuda/ptx.h, after the PTX ISA: "Matrix Fragments for mma.m16n8k16 with
// floating point type", "ldmatrix", "cp.async". A lane's group is lane / 4 and its place in the group lane % 4.
#pragma once

#include "testing/cuda_emulated/kernel_language.h"

namespace turbomind::emulated {

struct MmaOperands {
  uint32_t a[4];
  uint32_t b[2];
  float d[4];
};

template <class Element>
float half_of_word(uint32_t word, int index) {
  return to_float(Element{static_cast<uint16_t>(word >> 16 * index)});
}

// The whole of d [16, 8] += a [16, 16] b [16, 8], from and to the lanes' slots.
template <class Element>
void mma_m16n8k16(Slot* slots) {
  float a[16][16];
  float b[16][8];
  MmaOperands lanes[kWarpLanes];
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    std::memcpy(&lanes[lane], slots[lane].bytes, sizeof(MmaOperands));
    const MmaOperands& operands = lanes[lane];
    const int group = lane / 4;
    const int pair = lane % 4;
    for (int i = 0; i < 8; ++i) {  // elements a0 .. a7
      const int row = i % 4 < 2 ? group : group + 8;
      const int column = pair * 2 + (i & 1) + (i < 4 ? 0 : 8);
      a[row][column] = half_of_word<Element>(operands.a[i / 2], i % 2);
    }
    for (int i = 0; i < 4; ++i) {  // b0 .. b3
      const int row = pair * 2 + (i & 1) + (i < 2 ? 0 : 8);
      b[row][group] = half_of_word<Element>(operands.b[i / 2], i % 2);
    }
  }
  for (int row = 0; row < 16; ++row) {
    float sums[8] = {};
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < 8; ++column) sums[column] += a[row][k] * b[k][column];
    }
    for (int column = 0; column < 8; ++column) {
      lanes[row % 8 * 4 + column / 2].d[(row < 8 ? 0 : 2) + column % 2] += sums[column];
    }
  }
  for (int lane = 0; lane < kWarpLanes; ++lane) std::memcpy(slots[lane].bytes, &lanes[lane], sizeof(MmaOperands));
}

template <class Element>
void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  MmaOperands operands{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {d[0], d[1], d[2], d[3]}};
  const Slot* slots = warp_barrier("mma.m16n8k16", 0xFFFFFFFFu, &operands, sizeof(operands), &mma_m16n8k16<Element>);
  std::memcpy(&operands, slots[current_thread->lane].bytes, sizeof(operands));
  for (int i = 0; i < 4; ++i) d[i] = operands.d[i];
}

// Matrix m of 8 x 8 elements of 16 bits has its rows where lanes 8 m .. 8 m + 7 point.
template <int kMatrices>
void ldmatrix(uint32_t (&fragments)[kMatrices], const void* row, bool is_transposed) {
  const Lanes<const void*> rows("ldmatrix", 0xFFFFFFFFu, row);
  const int group = current_thread->lane / 4;
  const int pair = current_thread->lane % 4;
  for (int m = 0; m < kMatrices; ++m) {
    const auto element = [&](int r, int c) {
      const void* from = rows[8 * m + r];
      if (reinterpret_cast<uintptr_t>(from) % 16 != 0) fail("a row of ldmatrix must be aligned to 16 bytes");
      return static_cast<uint32_t>(static_cast<const uint16_t*>(from)[c]);
    };
    fragments[m] = is_transposed ? element(2 * pair, group) | element(2 * pair + 1, group) << 16
                                 : element(group, 2 * pair) | element(group, 2 * pair + 1) << 16;
  }
}

// Of an 8 x 8 matrix of 16-bit elements a lane gives two neighbours of a row, and gets two of a column.
inline uint32_t transpose_8x8(uint32_t row) {
  const Lanes<uint32_t> rows("movmatrix", 0xFFFFFFFFu, row);
  const int group = current_thread->lane / 4;
  const int pair = current_thread->lane % 4;
  const auto element = [&](int r) { return rows[r * 4 + group / 2] >> 16 * (group % 2) & 0xFFFFu; };
  return element(2 * pair) | element(2 * pair + 1) << 16;
}

inline void cp_async(void* shared, const void* global, int bytes, bool is_valid) {
  const auto to = reinterpret_cast<uintptr_t>(shared);
  const auto from = reinterpret_cast<uintptr_t>(global);
  const auto size = static_cast<uintptr_t>(bytes);
  if (to % size != 0 || (is_valid && from % size != 0)) fail("cp.async must be aligned to its size");
  start_copy(shared, global, is_valid ? bytes : 0, is_valid ? 0 : bytes);
}

}  // namespace turbomind::emulated
