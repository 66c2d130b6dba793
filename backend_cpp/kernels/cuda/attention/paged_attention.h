// Causal attention over a paged key/value cache on a GPU, and the cache write that precedes it:
// kernels/paged_attention.h with another order of the elements, and spans in device memory.
//
// Cache layout. Sizes and offsets are CacheLayout's. Inside the area of a head, keys and values both are token by
// token:
//   float32, bfloat16, int8   [block_len, dim]
//   int4                      [block_len, dim / 2] bytes, two neighbouring dimensions in one, the first low; dim is
//   even
// and for int8 and int4 scale [block_len] half and zero [block_len] uint8 are after the codes, as on the CPU, whose
// codes, scales and zeros these are bit for bit.
//
// Spans. Kernels read them from device memory, so a captured graph attends to whatever the host copied there before it
// was launched. The host fills, for every sequence of a step, one DeviceSpan, and appends its block ids to one array:
//   spans[s] = {first_token, count, first_position, where the ids of this sequence begin in `blocks`}
// Unused spans of a larger captured shape get count 0. Spans of one row and spans of many are faster in two calls than
// in one: the tiles of a call are chosen by max_tokens.
//
// Arithmetic. bfloat16, int8 and int4 caches with heads of up to 256 multiply on tensor cores: queries and softmax
// weights are rounded to bfloat16 (relative error 2^-8 each), or, decoding from codes, to float16 (2^-11); codes are
// exact; scores, softmax and sums are float32. A float32 cache, and other shapes, take a plain kernel in float32. How a
// context is split over blocks depends on the shape of the launch (DeviceSpans' counts and bounds), and results differ
// in rounding between shapes. A row that holds NaN spoils, beyond itself, only rows of its own sequence.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/paged_attention.h"
#include "kernels/rope.h"
#include "kernels/types.h"

namespace turbomind::cuda {

struct DeviceSpan {
  int32_t first_token = 0;
  int32_t count = 0;
  int32_t first_position = 0;
  int32_t first_block = 0;  // index in DeviceSpans::blocks of the block that holds position 0
};

struct DeviceSpans {
  const DeviceSpan* spans = nullptr;  // [span_count], on the device
  const int32_t* blocks = nullptr;    // on the device; ids of blocks outside the window are not read
  // The shape of the launch.
  int span_count = 0;
  int max_tokens = 0;   // no span's count is larger
  int max_context = 0;  // no span's first_position + count is larger
};

// `params.spans` and `span_count` are not looked at; pool, alibi_slopes, distance_biases and sinks are device pointers.
// Throws Error (kInvalidArgument) for an int4 cache of odd dimensions and a block_len that is no power of two from 16
// on.

// Rotates the queries, which may be {}, and keys of the spans' rows in place (kernels/rope.h), queries times `factors`,
// and writes k and v of each row, which may be {}, to the cache. Values may be a part of the keys that is not rotated.
// With `rounds_queries` a query, of at most 256 dimensions, becomes bfloat16 from where its float32 began.
//   k [rows, num_kv_heads, key_dim], v [rows, num_kv_heads, value_dim], float32
void rope_and_write(cudaStream_t stream, const RopeTable& table, const AttentionParams& params,
                    const DeviceSpans& spans, const HeadsView& q, const float* factors, const HeadsView& k,
                    const HeadsView& v, bool rounds_queries = false);

// Attends with the rows' queries to what the cache holds up to each row's own position. No dimension is above 1024.
//   q [rows, num_heads, key_dim] float32, rotated and multiplied by the factor of q.k already
//   out [rows, num_heads, value_dim], float32 or bfloat16
//   workspace: at least attention_workspace_floats(params, spans) floats on the device; may be null for 0
//   counters: of SplitCounters (linear/linear.h), for which a launch less is needed; or null
void paged_attention(cudaStream_t stream, const AttentionParams& params, const DeviceSpans& spans, const HeadsView& q,
                     float* workspace, const TypedRows& out, int32_t* counters = nullptr);

// Depends on the shape of the launch only.
size_t attention_workspace_floats(const AttentionParams& params, const DeviceSpans& spans);
// At least that of any launch.
size_t max_attention_workspace_floats(const AttentionParams& params);

}  // namespace turbomind::cuda
