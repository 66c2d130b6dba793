#include "device/cuda_rank_group.h"

#include <string>

#include "device/cuda_operators.h"

namespace turbomind {

CudaRankGroup::CudaRankGroup(int ranks) : ranks_(ranks) {
  if (const int found = cuda_device_count(); found < ranks) {
    throw invalid_argument("tp=" + std::to_string(ranks) + " needs " + std::to_string(ranks) + " GPUs, found " +
                           std::to_string(found));
  }
  group_ = std::make_shared<cuda::NcclGroup>(ranks);
}

std::unique_ptr<Operators> CudaRankGroup::make_operators(int rank) {
  cuda::check(cudaSetDevice(rank), "choosing a GPU");
  return std::make_unique<CudaOperators>(CudaRank{group_, rank});
}

}  // namespace turbomind
