#include "kernels/cuda/prefill/flashinfer/attention_pages.cuh"

namespace turbomind::cuda {

namespace {

const bool is_added = add_attention_pages<128, 128, 96>();

}  // namespace

}  // namespace turbomind::cuda
