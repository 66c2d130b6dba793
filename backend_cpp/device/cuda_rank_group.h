// Ranks on GPUs of this machine: rank r is GPU r.
#pragma once

#include <memory>

#include "device/rank_group.h"
#include "kernels/cuda/comm/nccl_group.h"

namespace turbomind {

class CudaRankGroup final : public RankGroup {
 public:
  // Throws Error when there are fewer GPUs, or no NCCL.
  explicit CudaRankGroup(int ranks);

  int size() const override { return ranks_; }
  std::unique_ptr<Operators> make_operators(int rank) override;
  void fail() noexcept override { group_->fail(); }

 private:
  int ranks_;
  std::shared_ptr<cuda::NcclGroup> group_;
};

}  // namespace turbomind
