// Grouped products by cuBLASLt, where it has them: its headers at build time, the library at run time. The interface is
// marked experimental there.
#include <cublasLt.h>

#include "kernels/cuda/grouped/grouped_kernel.h"
#include "kernels/cuda/linear/cublaslt.h"

#if CUBLAS_VERSION >= 130200

#include <bit>
#include <cstdio>
#include <map>
#include <optional>
#include <tuple>

namespace turbomind::cuda {

namespace {

constexpr size_t kVersionWithHopper = 130400;
constexpr size_t kMaxAlgorithms = 256;

using Shape = std::tuple<int, int, int, int, unsigned>;  // device, groups, outputs, inputs, about how many rows

// Of this thread, since each drives one device.
struct State {
  std::map<int, Library> libraries;                                 // by device
  std::map<Shape, std::optional<cublasLtMatmulAlgo_t>> algorithms;  // none: a kernel of ours multiplies
};

bool runs_on(int capability) {
  return capability >= 90 && cublasLtGetVersion() >= kVersionWithHopper;
}

// Column-major: y^T [outputs, rows] = w^T^T x^T, where w^T [inputs, outputs] is to be transposed.
struct Description {
  Product product;
  Matrix w;
  Matrix x;
  Matrix y;

  explicit Description(const GroupedCall& call) {
    const GroupedTable& table = call.table;
    const auto matrix = [&](Matrix& to, cudaDataType_t type, const int32_t* rows, const int32_t* columns) {
      check_status(cublasLtGroupedMatrixLayoutCreate(to.out(), type, call.groups, rows, columns, rows),
                   "describing groups of matrices");
    };
    check_status(cublasLtMatmulDescCreate(product.out(), CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");
    describe(product, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    matrix(w, CUDA_R_16BF, table.inputs, table.outputs);
    matrix(x, CUDA_R_16BF, table.inputs, table.rows);
    matrix(y, CUDA_R_16BF, table.outputs, table.rows);
  }
};

std::optional<cublasLtMatmulAlgo_t> no_algorithm(const GroupedCall& call) {
  std::fprintf(
      stderr,
      "turbomind: cuBLASLt %zu (built with %d) has no algorithm for %d products of %d inputs and %d outputs: a "
      "slower kernel of ours makes them\n",
      cublasLtGetVersion(), CUBLAS_VERSION, call.groups, call.inputs, call.outputs);
  return std::nullopt;
}

std::optional<cublasLtMatmulAlgo_t> algorithm_for(const Library& library, const Description& described,
                                                  const GroupedCall& call) {
  Preference preference;
  check_status(cublasLtMatmulPreferenceCreate(preference.out()), "stating what a product prefers");
  prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kGroupedWorkspaceBytes});
  // Hints at sizes that the device alone knows exactly; their types differ between versions.
  const auto hint = [&](cublasLtMatmulPreferenceAttributes_t attribute, int value) {
    const auto value64 = static_cast<int64_t>(value);
    if (cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value64, sizeof(value64)) !=
        CUBLAS_STATUS_SUCCESS) {
      cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value));
    }
  };
  hint(CUBLASLT_MATMUL_PREF_GROUPED_DESC_D_AVERAGE_ROWS, call.outputs);
  hint(CUBLASLT_MATMUL_PREF_GROUPED_DESC_D_AVERAGE_COLS, divide_up(call.rows, call.groups));
  hint(CUBLASLT_MATMUL_PREF_GROUPED_AVERAGE_REDUCTION_DIM, call.inputs);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(library.get(), described.product.get(), described.w.get(), described.x.get(),
                                     described.y.get(), described.y.get(), preference.get(), 1, &found, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && count == 0)) {
    return no_algorithm(call);
  }
  check_status(status, "choosing an algorithm for groups");
  return found.algo;
}

void run(cudaStream_t stream, const GroupedCall& call) {
  thread_local State state;
  int device = 0;
  check(cudaGetDevice(&device), "asking for the current device");
  Library& library = state.libraries[device];
  if (library.get() == nullptr) check_status(cublasLtCreate(library.out()), "starting");
  const Description described(call);
  const Shape shape{device, call.groups, call.outputs, call.inputs, std::bit_ceil(static_cast<unsigned>(call.rows))};
  auto known = state.algorithms.find(shape);
  if (known == state.algorithms.end()) {
    if (state.algorithms.size() == kMaxAlgorithms) state.algorithms.clear();
    known = state.algorithms.emplace(shape, algorithm_for(library, described, call)).first;
  }
  std::optional<cublasLtMatmulAlgo_t>& algorithm = known->second;
  if (!algorithm) return reference_groups(stream, GroupedType::kBFloat16, call);
  const GroupedTable& table = call.table;
  const float alpha = 1.0f;  // of all groups
  const float beta = 0.0f;
  const cublasStatus_t status =
      cublasLtMatmul(library.get(), described.product.get(), &alpha, table.w, described.w.get(), table.x,
                     described.x.get(), &beta, table.y, described.y.get(), table.y, described.y.get(), &*algorithm,
                     call.workspace, kGroupedWorkspaceBytes, stream);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) {
    algorithm = no_algorithm(call);
    return reference_groups(stream, GroupedType::kBFloat16, call);
  }
  check_status(status, "multiplying groups");
}

const bool is_added = add_library_kernel(GroupedKernel{2, "cuBLASLt", GroupedType::kBFloat16, runs_on, run});

}  // namespace

}  // namespace turbomind::cuda

#endif
