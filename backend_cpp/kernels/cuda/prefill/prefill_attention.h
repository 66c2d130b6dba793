// Attention of a step's prompts by a library's kernel: queries rounded to bfloat16, its launch, and results widened.
//
// Arithmetic. Queries, softmax weights and results are rounded to bfloat16 (relative error 2^-8 each); scores, softmax
// and sums are float32.
#pragma once

#include "kernels/cuda/attention/paged_attention.h"
#include "kernels/cuda/prefill/prefill_plan.h"
#include "kernels/cuda/scratch.h"

namespace turbomind::cuda {

// Sequences have this many rows, on average, where a library's kernel is used: its tiles have two to three times as
// many.
inline constexpr int kLeastPrefillRows = 64;

// Whether a library's kernel computes such attention to contexts of up to `most_keys` keys: a bfloat16 cache whose keys
// and values have one dimension, and no cap, slope, sink, sight or window that hides one of them.
bool is_prefill_attention(const AttentionParams& params, int most_keys);

size_t prefill_scratch_bytes(const AttentionParams& params, int rows);

// `on_device`: the plan. q and out as paged_attention has them; rows of other spans than the plan's are not written.
void prefill_attention(cudaStream_t stream, Scratch memory, const PrefillKernel& kernel, const PrefillPlan& plan,
                       const int32_t* on_device, const AttentionParams& params, const int32_t* blocks,
                       const HeadsView& q, const TypedRows& out);

}  // namespace turbomind::cuda
