// Emulation of the instructions in kernels/cuda/hopper.h, after the PTX ISA: "mbarrier", "cp.async.bulk", "Register
// Fragments for wgmma.mma_async.m64nNk16".
#pragma once

#include "emulated_ptx.h"

namespace turbomind::emulated {

// For a thread that looks again and again for what others of its block write.
void let_block_run();

struct CountingBarrier {
  uint16_t count;
  uint16_t left;
  int32_t bytes : 31;
  uint32_t phase : 1;

  void complete() {
    if (left > 0 || bytes != 0) return;
    left = count;
    phase ^= 1;
  }
};

template <int kColumns>
struct WgmmaOperands {
  uint32_t a[4];
  const std::byte* b;
  float (*d)[kColumns / 2];
  bool adds;
};

// A warp's part, from the lanes' slots: rows of d as mma_m16n8k16, columns 8 j .. 8 j + 7 in words 4 j .. 4 j + 3.
template <int kColumns>
void wgmma_m64k16(Slot* slots) {
  using Operands = WgmmaOperands<kColumns>;
  float a[16][16];
  Operands lanes[kWarpLanes];
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    std::memcpy(&lanes[lane], slots[lane].bytes, sizeof(Operands));
    for (int i = 0; i < 8; ++i) {
      const int row = i % 4 < 2 ? lane / 4 : lane / 4 + 8;
      a[row][lane % 4 * 2 + (i & 1) + (i < 4 ? 0 : 8)] = half_of_word<half>(lanes[lane].a[i / 2], i % 2);
    }
    if (lanes[lane].b != lanes[0].b || lanes[lane].adds != lanes[0].adds) fail("lanes of wgmma disagree");
  }
  for (int column = 0; column < kColumns; ++column) {
    float b[16];
    for (int k = 0; k < 16; ++k) {
      uint16_t bits;
      std::memcpy(&bits, lanes[0].b + (k / 8 * kColumns + column) * 16 + k % 8 * 2, sizeof(bits));
      b[k] = to_float(half{bits});
    }
    for (int row = 0; row < 16; ++row) {
      float sum = 0;
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k];
      float& d = (*lanes[row % 8 * 4 + column % 8 / 2].d)[column / 8 * 4 + (row < 8 ? 0 : 2) + column % 2];
      d = lanes[0].adds ? d + sum : sum;
    }
  }
}

template <int kColumns>
void wgmma(float (&d)[kColumns / 2], const uint32_t (&a)[4], const std::byte* b, bool adds) {
  const WgmmaOperands<kColumns> operands{{a[0], a[1], a[2], a[3]}, b, &d, adds};
  warp_barrier("wgmma", 0xFFFFFFFFu, &operands, sizeof(operands), &wgmma_m64k16<kColumns>);
}

}  // namespace turbomind::emulated
