// Interface of a library's prefill attention.
//
// Causal, over a bfloat16 cache whose keys and values have the same dimension; no window, cap, slope or sink.
#pragma once

#include <vector>

#include "kernels/cuda/attention/paged_attention.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/library_kernels.h"

namespace turbomind::cuda {

// Which multiprocessor computes which tile of rows of which head: items [first_item[m], first_item[m + 1]).
struct PrefillPlanView {
  int multiprocessors = 0;
  const int32_t* first_item = nullptr;  // [multiprocessors + 1]

  // Of each item:
  const int32_t* head = nullptr;
  const int32_t* tile = nullptr;         // of the sequence's rows
  const int32_t* first_token = nullptr;  // of the sequence, in queries and out
  const int32_t* rows = nullptr;         // of the sequence
  const int32_t* first_block = nullptr;  // of the sequence, in PrefillCall::blocks
  const int32_t* keys = nullptr;         // of the sequence: the last row sees them all, the one before one less
};

struct PrefillCall {
  const uint16_t* queries = nullptr;  // bfloat16, multiplied by the factor of q.k already
  size_t query_row_stride = 0;        // elements from row to row, and from head to head
  size_t query_head_stride = 0;
  uint16_t* out = nullptr;  // bfloat16 [rows, heads, dim]
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

// Which multiprocessor computes which tiles in attention of prompts: made on the host once a step, read by the kernel.
struct PrefillPlan {
  std::vector<DeviceSpan> spans;  // none empty
  int heads = 0;
  int tile_rows = 0;
  int multiprocessors = 0;

  int items() const;
  // int32 of the plan.
  size_t size() const;
};

// Writes the plan to `memory`, size() int32: long tiles first, each to who has least to do; heads of a tile, which
// share what they read, follow each other.
void fill_prefill_plan(const PrefillPlan& plan, int32_t* memory);
// That plan where it is on the device.
PrefillPlanView view_prefill_plan(const PrefillPlan& plan, const int32_t* memory);

// Attention of a step's prompts by a library's kernel, and results widened.
//
// Arithmetic. Queries, softmax weights and results are rounded to bfloat16 (relative error 2^-8 each); scores, softmax
// and sums are float32.

// Sequences have this many rows, on average, where a library's kernel is used: its tiles have two to three times as
// many.
inline constexpr int kMinPrefillRows = 64;

// Whether a library's kernel computes such attention to contexts of up to `max_keys` keys: a bfloat16 cache whose keys
// and values have one dimension, and no cap, slope, sink, sight or window that hides one of them.
bool is_prefill_attention(const AttentionParams& params, int max_keys);

size_t prefill_scratch_bytes(const AttentionParams& params, int rows);

// `on_device`: the plan. out as paged_attention has it, q as rope_and_write rounds it; rows of other spans than the
// plan's are not written.
void prefill_attention(cudaStream_t stream, Scratch memory, const PrefillKernel& kernel, const PrefillPlan& plan,
                       const int32_t* on_device, const AttentionParams& params, const int32_t* blocks,
                       const HeadsView& q, const TypedRows& out);

}  // namespace turbomind::cuda
