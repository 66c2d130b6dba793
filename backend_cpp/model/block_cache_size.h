// How many blocks a cache has, and how their contents travel between its two tiers.
#pragma once

#include <cstdint>

namespace turbomind {

struct CacheSize {
  int block_count = 0;       // where the model runs
  int block_len = 0;         // tokens of a block
  int host_block_count = 0;  // in the host's memory, behind the others in number
};

// What block `from` holds goes to block `to`, one of the two a host's.
struct BlockMove {
  int32_t from;
  int32_t to;
};

}  // namespace turbomind
