// Attention of prompts on Hopper by FlashInfer (wgmma; FlashAttention-3, arXiv 2407.08608): a PrefillCall as the
// argument of its kernel. Compiled for sm_90a alone: elsewhere it would be neither these instructions nor a trap.
#pragma once

#include "kernels/cuda/flashinfer.cuh"

#include <flashinfer/attention/hopper/prefill_sm90.cuh>

#include "kernels/cuda/prefill/prefill.h"

namespace turbomind::cuda {

// Scores as they come.
struct UnmodifiedScores {
  template <class Params, class Coordinates>
  __device__ UnmodifiedScores(const Params&, const Coordinates&) {}

  template <int kRows>
  __device__ auto GetAttentionUpdater() {
    return flashinfer::OnlineSoftmax<kRows, /*WITH_SCALE=*/true>(flashinfer::math::log2e);
  }

  template <class Params, class Score>
  __device__ __forceinline__ Score LogitsTransform(const Params&, Score score, uint32_t, uint32_t, uint32_t, uint32_t,
                                                   uint32_t) {
    return score;
  }
};

// As the library names them.
struct PageParams {
  using DTypeQ = cutlass::bfloat16_t;
  using DTypeKV = cutlass::bfloat16_t;
  using DTypeO = cutlass::bfloat16_t;
  using IdType = int32_t;
  struct AdditionalParams {};

  DTypeQ* q_ptr;
  DTypeKV* k_ptr;
  DTypeKV* v_ptr;
  DTypeO* o_ptr;
  float* lse_ptr;
  IdType* qo_tile_indices;
  IdType* qo_indptr;
  IdType* kv_indptr;
  IdType* kv_indices;
  IdType* qo_lens;
  IdType* kv_lens;
  IdType* head_indices;
  IdType* work_indptr;
  IdType* batch_indices;
  AdditionalParams additional_params;
  int64_t q_stride_n;
  int64_t k_stride_n;
  int64_t v_stride_n;
  int64_t o_stride_n;
  int64_t q_stride_h;
  int64_t k_stride_h;
  int64_t v_stride_h;
  int64_t o_stride_h;
  int64_t nnz_qo;
  int64_t k_page_stride;
  int64_t v_page_stride;
  int num_qo_heads;
  int num_kv_heads;
  int page_size;
  int window_left;
};

// The library only reads what is const here.
inline PageParams params_of(const PrefillCall& call, int dim) {
  const auto elements = [](const uint16_t* x) {
    return reinterpret_cast<cutlass::bfloat16_t*>(const_cast<uint16_t*>(x));
  };
  const auto indices = [](const int32_t* x) { return const_cast<int32_t*>(x); };
  const PrefillPlanView& plan = call.plan;
  PageParams params{};
  params.q_ptr = elements(call.queries);
  params.k_ptr = elements(call.keys);
  params.v_ptr = elements(call.values);
  params.o_ptr = elements(call.out);
  params.work_indptr = indices(plan.first_item);
  params.head_indices = indices(plan.head);
  params.qo_tile_indices = indices(plan.tile);
  params.qo_indptr = indices(plan.first_token);
  params.qo_lens = indices(plan.rows);
  params.kv_indptr = indices(plan.first_block);
  params.kv_lens = indices(plan.keys);
  params.batch_indices = indices(plan.head);  // read, and not used
  params.kv_indices = indices(call.blocks);
  params.q_stride_n = static_cast<int64_t>(call.query_row_stride);
  params.q_stride_h = static_cast<int64_t>(call.query_head_stride);
  params.o_stride_n = int64_t{call.heads} * dim;
  params.o_stride_h = dim;
  params.k_stride_n = params.v_stride_n = dim;
  params.k_stride_h = params.v_stride_h = int64_t{call.block_len} * dim;
  params.k_page_stride = params.v_page_stride = static_cast<int64_t>(call.block_stride);
  params.nnz_qo = call.rows;
  params.num_qo_heads = call.heads;
  params.num_kv_heads = call.kv_heads;
  params.page_size = call.block_len;
  params.window_left = -1;
  return params;
}

template <int kDim, int kTileRows, int kTileKeys>
void attention_pages(cudaStream_t stream, const PrefillCall& call) {
  using Params = PageParams;
  using Traits = flashinfer::AttentionKernelTraits</*USE_TMA_LOAD_KV=*/false, kDim, kDim, kTileRows, kTileKeys,
                                                   /*NUM_STAGES=*/2, Params::DTypeQ, Params::DTypeKV, Params::DTypeO,
                                                   Params::IdType, UnmodifiedScores>;
  Params params = params_of(call, kDim);
  check(flashinfer::BatchPrefillWithPagedKVCacheKernelTraitsDispatched<
            Traits, /*LEFT_SLIDING_WINDOW=*/false, /*CAUSAL=*/true, /*SAME_SCHEDULE_FOR_ALL_HEADS=*/false>(params,
                                                                                                           stream),
        "attention of prompts by FlashInfer");
  check(cudaGetLastError(), "attention of prompts by FlashInfer");
}

// Adds the kernel for heads of kDim, in tiles of that many rows and keys.
template <int kDim, int kTileRows, int kTileKeys>
bool add_attention_pages() {
  return add_library_kernel(PrefillKernel{"FlashInfer, Hopper", kDim, kTileRows,
                                          [](int capability) { return capability == 90; },
                                          attention_pages<kDim, kTileRows, kTileKeys>});
}

}  // namespace turbomind::cuda
