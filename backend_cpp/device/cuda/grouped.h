// Grouped GEMMs of experts by a library kernel that has passed its self-check (self_check.h).
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "kernels/cuda/linear/gemm.h"
#include "kernels/cuda/moe/moe.h"

namespace turbomind {

class CudaOperators;

class CudaGrouped {
 public:
  // `gemm` multiplies what the library is compared with.
  CudaGrouped(CudaOperators& ops, cuda::Gemm& gemm);

  // The kernel for this many rows, each with top_k of the experts; null: ours. The first time that there could be one,
  // those there are are tried, the best first.
  const cuda::GroupedKernel* kernel_for(const cuda::ExpertTable& experts, int rows, int top_k);

 private:
  struct Candidates {
    std::vector<cuda::GroupedKernel> untried;  // from the best on
    std::optional<cuda::GroupedKernel> chosen;
  };

  CudaOperators& ops_;
  cuda::Gemm& gemm_;
  std::map<cuda::GroupedType, Candidates> candidates_;
};

}  // namespace turbomind
