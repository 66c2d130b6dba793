#include "kernels/cuda/prefill/flashinfer/attention_pages.cuh"

namespace turbomind::cuda {

namespace {

const bool is_added = add_attention_pages<256, 128, 32>();

}  // namespace

}  // namespace turbomind::cuda
