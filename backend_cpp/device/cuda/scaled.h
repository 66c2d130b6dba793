// GEMMs whose scales a library applies, after their self-check (self_check.h).
#pragma once

#include <map>
#include <utility>

#include "kernels/cuda/linear/linear.h"

namespace turbomind {

class CudaOperators;

class CudaScaled {
 public:
  CudaScaled(CudaOperators& ops, cuda::Gemm& gemm);

  // Scales with which cuda::linear may leave this many rows to the library. The first time that it could, the library
  // is tried.
  cuda::GemmScales scales_for(const LinearWeight& weight, int rows);
  // cuda::linear_types of such a call, as far as the library has passed in it.
  LinearTypes types_of(const LinearWeight& weight, int rows);

 private:
  bool passes(cuda::GemmScales scales, DType result);

  CudaOperators& ops_;
  cuda::Gemm& gemm_;
  bool may_be_used_;
  std::map<std::pair<cuda::GemmScales, DType>, bool> passed_;  // what was tried
};

}  // namespace turbomind
