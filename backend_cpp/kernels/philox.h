// Counter-based random numbers (Philox 4x32-10, Salmon et al., 2011): the n-th draw of a seed is a pure function of
// both, on every device, so a request's tokens depend on its seed alone, whatever else runs, and survive recomputation.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define TURBOMIND_EVERYWHERE __host__ __device__
#else
#define TURBOMIND_EVERYWHERE
#endif

namespace turbomind {

// In [0, 1).
TURBOMIND_EVERYWHERE inline double uniform(uint64_t seed, uint64_t counter) {
  uint32_t x[4] = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * x[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * x[2];
    const uint32_t first = static_cast<uint32_t>(b >> 32) ^ x[1] ^ key[0];
    const uint32_t third = static_cast<uint32_t>(a >> 32) ^ x[3] ^ key[1];
    x[0] = first;
    x[1] = static_cast<uint32_t>(b);
    x[2] = third;
    x[3] = static_cast<uint32_t>(a);
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  const uint64_t bits = (static_cast<uint64_t>(x[0]) << 32 | x[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace turbomind

#undef TURBOMIND_EVERYWHERE
