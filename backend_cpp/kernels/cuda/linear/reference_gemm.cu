#include "kernels/cuda/linear/gemms.h"

#include "kernels/cuda/linear/reference_block.cuh"

namespace turbomind::cuda {

namespace {

using namespace reference;

template <class T, class Sum, class Result>
__global__ void __launch_bounds__(kThreads) reference_gemm_kernel(GemmCall call) {
  await_previous();
  make_block<T, Sum, Result>(call);
}

template <class T, class Sum, class Result>
void launch_gemm(cudaStream_t stream, const GemmCall& call) {
  launch(reference_gemm_kernel<T, Sum, Result>, rows_and(divide_up(call.rows, kSide), divide_up(call.outputs, kSide)),
         dim3(kThreads), 0, stream, call);
}

}  // namespace

void reference_gemm(cudaStream_t stream, const GemmCall& call) {
  const bool is_float32 = call.result == DType::kFloat32;
  switch (call.type) {
    case GemmType::kFloat32:
      return launch_gemm<float, float, float>(stream, call);
    case GemmType::kBFloat16:
      if (is_float32) return launch_gemm<bf16, float, float>(stream, call);
      return launch_gemm<bf16, float, __nv_bfloat16>(stream, call);
    case GemmType::kFloat16:
      if (is_float32) return launch_gemm<half, float, float>(stream, call);
      return launch_gemm<half, float, __half>(stream, call);
    case GemmType::kInt8:
      return launch_gemm<int8_t, int32_t, int32_t>(stream, call);
    case GemmType::kFloat8:
      if (is_float32) return launch_gemm<float8, float, float>(stream, call);
      return launch_gemm<float8, float, __nv_bfloat16>(stream, call);
  }
}

}  // namespace turbomind::cuda
