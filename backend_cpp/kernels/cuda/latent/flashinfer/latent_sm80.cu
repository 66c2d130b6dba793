// Latent attention on Ampere and Ada by FlashInfer (mma).
#include "kernels/cuda/latent/flashinfer/params.cuh"

#include <flashinfer/attention/mla.cuh>

namespace turbomind::cuda {

namespace {

bool runs_on(int capability) {
  return capability >= 80 && capability < 90;
}

void run(cudaStream_t stream, const LatentCall& call) {
  check(flashinfer::mla::BatchMLAPagedAttention<flashinfer::MaskMode::kCausal, kLatentRank, kLatentRope>(
            params_of(call), static_cast<uint32_t>(call.plan.width), static_cast<uint32_t>(call.plan.teams), stream),
        "latent attention by FlashInfer");
}

const bool is_added = add_library_kernel(LatentKernel{"FlashInfer, Ampere", runs_on, run});

}  // namespace

}  // namespace turbomind::cuda
