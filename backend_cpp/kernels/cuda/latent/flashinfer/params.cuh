// A LatentCall as the argument of FlashInfer's kernels.
#pragma once

#include "kernels/cuda/flashinfer.cuh"

#include <cuda_bf16.h>

#include <flashinfer/attention/mla_params.cuh>

#include "kernels/cuda/latent/latent.h"

namespace turbomind::cuda {

using LatentParams = flashinfer::MLAParams<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, int32_t>;

// The library only reads what is const here.
inline LatentParams params_of(const LatentCall& call) {
  const auto elements = [](const uint16_t* x) { return reinterpret_cast<__nv_bfloat16*>(const_cast<uint16_t*>(x)); };
  const auto indices = [](const int32_t* x) { return const_cast<int32_t*>(x); };
  const LatentPlanView& plan = call.plan;
  const auto heads = static_cast<uint32_t>(call.heads);
  LatentParams params{};
  params.q_pe = elements(call.queries);
  params.q_nope = elements(call.queries + kLatentRope);
  params.kpe = elements(call.keys);
  params.ckv = elements(call.keys + kLatentRope);
  params.partial_o = elements(call.partial_out);
  params.partial_lse = call.partial_lse;
  params.final_o = elements(call.out);
  params.final_lse = nullptr;
  params.q_indptr = indices(plan.first_token);
  params.kv_indptr = indices(plan.first_block);
  params.partial_indptr = indices(plan.partial);
  params.merge_packed_offset_start = indices(plan.merge_first);
  params.merge_packed_offset_end = indices(plan.merge_last);
  params.merge_partial_packed_offset_start = indices(plan.merge_partial_first);
  params.merge_partial_packed_offset_end = indices(plan.merge_partial_last);
  params.merge_partial_stride = indices(plan.merge_stride);
  params.kv_indices = indices(call.blocks);
  params.q_len = indices(plan.rows);
  params.kv_len = indices(plan.keys);
  params.q_start = indices(plan.first_packed);
  params.kv_start = indices(plan.first_key);
  params.kv_end = indices(plan.last_key);
  params.work_indptr = indices(plan.first_item);
  params.block_size = static_cast<uint32_t>(call.block_len);
  params.num_heads = heads;
  params.q_nope_stride_n = params.q_pe_stride_n = heads * kLatentKey;
  params.q_nope_stride_h = params.q_pe_stride_h = kLatentKey;
  params.ckv_stride_page = params.kpe_stride_page = static_cast<uint32_t>(call.block_stride);
  params.ckv_stride_n = params.kpe_stride_n = kLatentKey;
  params.o_stride_n = heads * kLatentRank;
  params.o_stride_h = kLatentRank;
  params.sm_scale = 1.0f;
  params.return_lse_base_on_e = false;
  return params;
}

}  // namespace turbomind::cuda
