// Products of groups by a plain kernel of ours: for shapes that a library has no algorithm for.
#pragma once

#include "kernels/cuda/grouped/grouped_kernel.h"

namespace turbomind::cuda {

// What GroupedKernel::run does.
void plain_groups(cudaStream_t stream, GroupedType type, const GroupedCall& call);

}  // namespace turbomind::cuda
