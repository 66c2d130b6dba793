#pragma once

#include <memory>

#include "kernels/cuda/comm/nccl_group.h"

namespace turbomind {

// Which rank of a group somebody is; of none, without a group.
struct CudaRank {
  std::shared_ptr<cuda::NcclGroup> group;
  int rank = 0;

  // Throws Error when another rank has failed.
  void check() const {
    if (group) group->check();
  }
};

}  // namespace turbomind
