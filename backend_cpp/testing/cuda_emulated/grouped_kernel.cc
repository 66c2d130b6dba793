// Products of groups, a group after the other.
#include <algorithm>
#include <array>

#include "kernels/cuda/grouped/grouped_kernel.h"
#include "kernels/types.h"
#include "testing/cuda_emulated/faults.h"

namespace turbomind::emulated {

namespace {

constexpr const char* kName = "experts";

float bfloat16_at(const void* matrix, size_t index) {
  return to_float(static_cast<const bf16*>(matrix)[index]);
}

float float8_at(const void* matrix, size_t index) {
  return to_float(static_cast<const float8*>(matrix)[index]);
}

void multiply(const cuda::GroupedCall& call, int group, cuda::GroupedType type, bool is_wrong) {
  const cuda::GroupedTable& table = call.table;
  const int32_t* shape = table.shapes + 3 * group;
  if (shape[0] != table.rows[group] || shape[1] != table.outputs[group] || shape[2] != table.inputs[group]) {
    throw internal_error("a table of groups contradicts itself");
  }
  const auto [rows, outputs, inputs] = std::array{shape[0], shape[1], shape[2]};
  const bool is_float8 = type == cuda::GroupedType::kFloat8;
  const auto at = is_float8 ? float8_at : bfloat16_at;
  for (int row = 0; row < rows; ++row) {
    const size_t first_x = row * static_cast<size_t>(table.x_strides[group]);
    for (int output = 0; output < outputs; ++output) {
      const size_t first_w = static_cast<size_t>(output) * inputs;
      float sum = 0;
      for (int first = 0; first < inputs; first += cuda::kGroupBlock) {
        float part = 0;
        const int last = std::min(inputs - (is_wrong && !is_float8 ? 1 : 0), first + cuda::kGroupBlock);
        for (int i = first; i < last; ++i) part += at(table.x[group], first_x + i) * at(table.w[group], first_w + i);
        // The wrong library takes the scales of the first inputs for all.
        const int block = is_wrong ? 0 : first / cuda::kGroupBlock;
        sum += !is_float8
                   ? part
                   : part * table.x_scales[group][block * rows + row] * table.w_scales[group][block * outputs + output];
      }
      static_cast<bf16*>(table.y[group])[row * table.y_strides[group] + output] = to_bf16(sum);
    }
  }
}

bool runs_on(int) {
  return library(kName) != Library::kNone;
}

template <cuda::GroupedType kType>
void run(cudaStream_t stream, const cuda::GroupedCall& call) {
  if (library("products") == Library::kWrong) {  // as cuBLASLt's, it has no algorithms
    count_library_launch("products");
    return cuda::reference_groups(stream, kType, call);
  }
  cuda::check(begin_call("cudaLaunchKernelExC"), "products of groups by an emulated library");
  submit([call, is_wrong = library(kName) == Library::kWrong] {
    count_library_launch(kName);
    for (int group = 0; group < call.groups; ++group) multiply(call, group, kType, is_wrong);
  });
}

constexpr auto kBFloat16 = cuda::GroupedType::kBFloat16;
constexpr auto kFloat8 = cuda::GroupedType::kFloat8;
const bool is_added =
    cuda::add_library_kernel(cuda::GroupedKernel{0, "an emulated library", kBFloat16, runs_on, run<kBFloat16>}) &&
    cuda::add_library_kernel(cuda::GroupedKernel{0, "an emulated library", kFloat8, runs_on, run<kFloat8>});

}  // namespace

}  // namespace turbomind::emulated
