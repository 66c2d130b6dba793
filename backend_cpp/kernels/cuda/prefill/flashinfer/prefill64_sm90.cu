#include "kernels/cuda/prefill/flashinfer/attend_pages.cuh"

namespace turbomind::cuda {

namespace {

constexpr int kDim = 64;
constexpr int kTileRows = 192;
constexpr int kTileKeys = 96;

const bool is_added =
    add_prefill_kernel({"FlashInfer, Hopper", kDim, kTileRows, is_hopper, attend_pages<kDim, kTileRows, kTileKeys>});

}  // namespace

}  // namespace turbomind::cuda
