// Ranks on the CPU: each has some of the cores.
#pragma once

#include <memory>

#include "device/host_exchange.h"
#include "device/rank_group.h"

namespace turbomind {

class CpuRankGroup final : public RankGroup {
 public:
  // threads 0: all CPUs.
  CpuRankGroup(int ranks, int threads);

  int size() const override { return ranks_; }
  std::unique_ptr<Operators> make_operators(int rank) override;
  void fail() noexcept override { exchange_->fail(); }

 private:
  int ranks_;
  int threads_;
  std::shared_ptr<HostExchange> exchange_;
};

}  // namespace turbomind
