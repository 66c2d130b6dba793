// Attention of prompts by a library: what is asked of its kernel, and which there are.
//
// Causal, over a bfloat16 cache whose keys and values have the same dimension; no window, cap, slope or sink.
#pragma once

#include "kernels/cuda/device.h"

namespace turbomind::cuda {

// Which multiprocessor computes which tile of rows of which head: items [first_item[m], first_item[m + 1]).
struct PrefillPlanView {
  int multiprocessors = 0;
  const int32_t* first_item = nullptr;  // [multiprocessors + 1]

  // Of each item:
  const int32_t* head = nullptr;
  const int32_t* tile = nullptr;         // of the sequence's rows
  const int32_t* first_row = nullptr;    // of the sequence, in queries and out
  const int32_t* rows = nullptr;         // of the sequence
  const int32_t* first_block = nullptr;  // of the sequence, in PrefillCall::blocks
  const int32_t* keys = nullptr;         // of the sequence: the last row sees them all, the one before one less
};

struct PrefillCall {
  const uint16_t* queries = nullptr;  // bfloat16 [rows, heads, dim], multiplied by the factor of q.k already
  uint16_t* out = nullptr;            // bfloat16 [rows, heads, dim]
  int rows = 0;
  int heads = 0;
  int kv_heads = 0;  // divides heads
  // bfloat16: the layer's [kv_heads, block_len, dim] of block 0
  const uint16_t* keys = nullptr;
  const uint16_t* values = nullptr;
  size_t block_stride = 0;  // elements from block to block
  int block_len = 0;
  const int32_t* blocks = nullptr;  // on the device
  PrefillPlanView plan;
};

struct PrefillKernel {
  const char* name;
  int dim;        // of heads
  int tile_rows;  // of one sequence and head that an item has
  // Of compute capability major.minor, 10 major + minor.
  bool (*runs_on)(int capability);
  void (*run)(cudaStream_t stream, const PrefillCall& call);
};

// How a unit that was built with a library says so, before main() begins.
bool add_prefill_kernel(const PrefillKernel& kernel);
// The first of those added that is for such heads and runs on such a device; null when there is none.
const PrefillKernel* prefill_kernel_for(int dim, int capability);

}  // namespace turbomind::cuda
