// FlashInfer's headers (Apache-2.0; wheel flashinfer-python, see requirements/cuda-libraries.txt) with what they need
// to compile without the rest of its wheel, and a LatentCall as the argument of its kernels.
#pragma once

// In the place of flashinfer/fastdiv.cuh, which wants a CCCL newer than that of CUDA 13.0: a division by a number that
// is known at run time alone. Exact for n < 2^31 (Granlund and Montgomery, 1994): m = ceil(2^(31 + l) / d) fits 32
// bits.
#define FLASHINFER_FASTDIV_CUH_
#include <cstdint>

namespace flashinfer {

struct uint_fastdiv {
  uint32_t divisor = 1;
  uint32_t factor = 0;  // 0: the divisor is 1
  uint32_t shift = 0;

  __host__ __device__ uint_fastdiv() {}
  __host__ __device__ uint_fastdiv(uint32_t d) : divisor(d) {
    if (d <= 1) return;
    while ((uint64_t{1} << shift) < d) ++shift;
    factor = static_cast<uint32_t>(((uint64_t{1} << (31 + shift)) + d - 1) / d);
    shift -= 1;
  }
  __host__ __device__ __forceinline__ operator unsigned int() const { return divisor; }
  __host__ __device__ __forceinline__ void divmod(uint32_t n, uint32_t& quotient, uint32_t& rest) const {
    quotient = factor == 0 ? n : static_cast<uint32_t>(uint64_t{n} * factor >> 32) >> shift;
    rest = n - quotient * divisor;
  }
};

__host__ __device__ __forceinline__ uint32_t operator/(uint32_t n, const uint_fastdiv& by) {
  uint32_t quotient;
  uint32_t rest;
  by.divmod(n, quotient, rest);
  return quotient;
}

__host__ __device__ __forceinline__ uint32_t operator%(uint32_t n, const uint_fastdiv& by) {
  uint32_t quotient;
  uint32_t rest;
  by.divmod(n, quotient, rest);
  return rest;
}

}  // namespace flashinfer

#include <cuda_bf16.h>

#include <flashinfer/attention/mla_params.cuh>

#include "kernels/cuda/latent/latent_kernel.h"

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
  params.q_indptr = indices(plan.first_row);
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
