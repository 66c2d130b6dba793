#include "kernels/cuda/prefill/flashinfer/attention_pages.cuh"

namespace turbomind::cuda {

namespace {

const bool is_added = add_attention_pages<64, 192, 96>();

}  // namespace

}  // namespace turbomind::cuda
