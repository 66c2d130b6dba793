#include <cstdio>
#include <tuple>

#include "base/recent_map.h"
#include "kernels/cuda/linear/cublaslt.h"
#include "kernels/cuda/linear/gemm.h"

namespace turbomind::cuda {

namespace {

// Prompts of any length come: each length has a plan for each shape of a weight.
constexpr size_t kMaxPlans = 1024;

// Everything about a product but its pointers.
struct Plan {
  Product product;
  Matrix w;
  Matrix x;
  Matrix y;
  bool has_algorithm = false;
  cublasLtMatmulAlgo_t algorithm{};
};

// Of x and w, of sums, of alpha, and of y.
struct Types {
  cudaDataType_t operand;
  cublasComputeType_t sum;
  cudaDataType_t factor;
  cudaDataType_t result;
};

cudaDataType_t type_of(DType type) {
  return type == DType::kBFloat16 ? CUDA_R_16BF : type == DType::kFloat16 ? CUDA_R_16F : CUDA_R_32F;
}

Types types_of(const GemmCall& call) {
  const cudaDataType_t result = type_of(call.result);
  switch (call.type) {
    case GemmType::kBFloat16:
      return {CUDA_R_16BF, CUBLAS_COMPUTE_32F, CUDA_R_32F, result};
    case GemmType::kFloat16:
      return {CUDA_R_16F, CUBLAS_COMPUTE_32F, CUDA_R_32F, result};
    case GemmType::kInt8:
      return {CUDA_R_8I, CUBLAS_COMPUTE_32I, CUDA_R_32I, CUDA_R_32I};
    case GemmType::kFloat8:
      return {CUDA_R_8F_E4M3, CUBLAS_COMPUTE_32F, CUDA_R_32F, result};
    case GemmType::kFloat32:
      break;
  }
  return {CUDA_R_32F, CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_32F};
}

class CublasLtGemm : public Gemm {
 public:
  CublasLtGemm() : has_float8_(compute_capability() >= 89) {
    check_status(cublasLtCreate(handle_.out()), "starting");
    if (compute_capability() != 90 || has_scales(GemmScales::kRows)) return;
    std::fprintf(stderr,
                 "turbomind: cuBLASLt %zu (built with %d) applies no scales of fp8, as 120900 does: our kernel applies "
                 "them\n",
                 cublasLtGetVersion(), CUBLAS_VERSION);
  }

  bool has_float8() const override { return has_float8_; }
  bool has_scales(GemmScales scales) const override {
#if CUBLAS_VERSION >= 120900
    return scales == GemmScales::kNone || (compute_capability() == 90 && cublasLtGetVersion() >= 120900);
#else
    return scales == GemmScales::kNone;
#endif
  }

  bool multiply(cudaStream_t stream, Scratch scratch, const GemmCall& call) override {
    auto* workspace = scratch.take<std::byte>(kGemmScratchBytes);
    Plan& plan = plan_of(call);
    if (!plan.has_algorithm) return false;
    if (call.scales != GemmScales::kNone) {
      describe(plan.product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, call.w_scales);
      describe(plan.product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, call.x_scales);
    }
    const float beta = call.accumulates ? 1.0f : 0.0f;
    const int32_t whole_alpha = 1;
    const int32_t whole_beta = 0;
    const bool is_whole = call.type == GemmType::kInt8;  // alpha and beta have the type of sums
    const void* alpha = is_whole ? static_cast<const void*>(&whole_alpha) : &call.alpha;
    const void* kept = is_whole ? static_cast<const void*>(&whole_beta) : &beta;
    const cublasStatus_t status = cublasLtMatmul(handle_.get(), plan.product.get(), alpha, call.w, plan.w.get(), call.x,
                                                 plan.x.get(), kept, call.y, plan.y.get(), call.y, plan.y.get(),
                                                 &plan.algorithm, workspace, kGemmScratchBytes, stream);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) {
      plan.has_algorithm = false;
      report_missing(call);
      return false;
    }
    check_status(status, "multiplying");
    return true;
  }

 private:
  using Shape = std::tuple<GemmType, GemmScales, DType, int, int, int, size_t>;

  // Once a shape.
  static void report_missing(const GemmCall& call) {
    std::fprintf(stderr,
                 "turbomind: cuBLASLt %zu (built with %d) has no algorithm for a product of %d rows, %d inputs and %d "
                 "outputs: a slower kernel of ours makes it\n",
                 cublasLtGetVersion(), CUBLAS_VERSION, call.rows, call.inputs, call.outputs);
  }

  Plan& plan_of(const GemmCall& call) {
    const Shape shape{call.type, call.scales, call.result, call.rows, call.outputs, call.inputs, call.y_stride};
    return plans_.get(shape, [&] { return make_plan(call); });
  }

  // cuBLAS is column-major: y^T [outputs, rows] = w^T^T x^T, where w^T [inputs, outputs] is to be transposed.
  Plan make_plan(const GemmCall& call) const {
    Plan plan;
    const auto [type, sum, factor, result] = types_of(call);
    check_status(cublasLtMatmulDescCreate(plan.product.out(), sum, factor), "describing a product");
    describe(plan.product, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
#if CUBLAS_VERSION >= 120900
    if (call.scales != GemmScales::kNone) {
      const auto mode =
          static_cast<int32_t>(call.scales == GemmScales::kRows ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                                                                : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
      describe(plan.product, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
      describe(plan.product, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
      describe(plan.product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, call.w_scales);
      describe(plan.product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, call.x_scales);
    }
#endif
    const auto inputs = static_cast<uint64_t>(call.inputs);
    const auto outputs = static_cast<uint64_t>(call.outputs);
    const auto rows = static_cast<uint64_t>(call.rows);
    const auto stride = static_cast<int64_t>(call.y_stride);
    check_status(cublasLtMatrixLayoutCreate(plan.w.out(), type, inputs, outputs, call.inputs), "describing a weight");
    check_status(cublasLtMatrixLayoutCreate(plan.x.out(), type, inputs, rows, call.inputs), "describing an input");
    check_status(cublasLtMatrixLayoutCreate(plan.y.out(), result, outputs, rows, stride), "describing an output");

    Preference preference;
    check_status(cublasLtMatmulPreferenceCreate(preference.out()), "stating what a product prefers");
    prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kGemmScratchBytes});
    constexpr uint32_t kAlignment = 16;
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kAlignment);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kAlignment);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kAlignment);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kAlignment);
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_.get(), plan.product.get(), plan.w.get(), plan.x.get(), plan.y.get(),
                                       plan.y.get(), preference.get(), 1, &found, &count);
    plan.has_algorithm = status == CUBLAS_STATUS_SUCCESS && count > 0;
    plan.algorithm = found.algo;
    if (!plan.has_algorithm) {
      if (status != CUBLAS_STATUS_NOT_SUPPORTED) check_status(status, "choosing an algorithm");
      report_missing(call);
    }
    return plan;
  }

  Library handle_;
  bool has_float8_;
  RecentMap<Shape, Plan> plans_{kMaxPlans};
};

}  // namespace

std::unique_ptr<Gemm> make_gemm() {
  return std::make_unique<CublasLtGemm>();
}

}  // namespace turbomind::cuda
