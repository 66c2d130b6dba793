// Sums in one launch on every GPU, on probation as libraries' kernels are (self_check.h).
#pragma once

#include <memory>

#include "kernels/cuda/comm/p2p_all_reduce.h"

namespace turbomind {

// The exchange between this many GPUs. Null where they do not reach each other's memory, where LMDEPLOY_CUDA_KERNELS
// names the library, and where its sums are not those of the host.
std::unique_ptr<cuda::P2pAllReduce> proven_peers(int ranks);

}  // namespace turbomind
