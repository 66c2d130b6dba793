#include "device/cpu_rank_group.h"

#include <algorithm>

#include "device/cpu_operators.h"

namespace turbomind {

CpuRankGroup::CpuRankGroup(int ranks, int threads)
    : ranks_(ranks),
      threads_(threads > 0 ? threads : available_cpu_count()),
      exchange_(std::make_shared<HostExchange>(ranks)) {}

std::unique_ptr<Operators> CpuRankGroup::make_operators(int rank) {
  const int first = threads_ * rank / ranks_;
  const int threads = threads_ * (rank + 1) / ranks_ - first;
  return std::make_unique<CpuOperators>(std::max(threads, 1), RankPlace{exchange_, rank});
}

}  // namespace turbomind
