// Latent attention on Hopper by FlashInfer (wgmma). Compiled for sm_90a alone: elsewhere it would be neither these
// instructions nor a trap.
#include "kernels/cuda/latent/flashinfer/params.cuh"

#include <flashinfer/attention/mla_hopper.cuh>

namespace turbomind::cuda {

namespace {

bool runs_on(int capability) {
  return capability == 90;
}

void run(cudaStream_t stream, const LatentCall& call) {
  check(flashinfer::mla::BatchMLAPageAttentionHopper<flashinfer::MaskMode::kCausal, kLatentRank, kLatentRope>(
            params_of(call), static_cast<uint32_t>(call.plan.width), static_cast<uint32_t>(call.plan.teams), stream),
        "latent attention by FlashInfer");
}

const bool is_added = add_library_kernel(LatentKernel{"FlashInfer, Hopper", runs_on, run});

}  // namespace

}  // namespace turbomind::cuda
