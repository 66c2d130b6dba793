// Latent attention of a step by a library's kernel: queries rounded to bfloat16, the launches of the plan, and results
// widened.
//
// Arithmetic. Queries, softmax weights, parts of a split context and results are rounded to bfloat16 (relative error
// 2^-8 each); scores, softmax and sums are float32. Values are the keys' latents.
#pragma once

#include <vector>

#include "kernels/cuda/latent/latent_plan.h"
#include "kernels/cuda/scratch.h"

namespace turbomind::cuda {

// Whether a library's kernel computes such attention: a bfloat16 cache of one latent head, and no window, cap, slope,
// sink or sight.
bool is_latent_attention(const AttentionParams& params);

size_t latent_scratch_bytes(const std::vector<LatentPiece>& pieces);

// `plan`, on the device: of the pieces, one after the other. q and out as paged_attention has them; rows of no span
// are not written.
void latent_attention(cudaStream_t stream, Scratch memory, const LatentKernel& kernel,
                      const std::vector<LatentPiece>& pieces, const int32_t* plan, const AttentionParams& params,
                      const int32_t* blocks, const HeadsView& q, float* out);

}  // namespace turbomind::cuda
