// Products of groups, a group after the other.
#include "kernels/cuda/grouped/grouped_kernel.h"

#include "kernels/types.h"
#include "testing/cuda_emulated/libraries.h"

namespace turbomind::emulated {

namespace {

constexpr const char* kName = "groups";

void multiply(const cuda::GroupedCall& call, int group, bool is_wrong) {
  const cuda::GroupedTable& table = call.table;
  const int32_t* shape = table.shapes + 3 * group;
  if (shape[0] != table.rows[group] || shape[1] != table.outputs[group] || shape[2] != table.inputs[group]) {
    throw internal_error("a table of groups contradicts itself");
  }
  for (int row = 0; row < shape[0]; ++row) {
    const uint16_t* x = table.x[group] + row * table.x_strides[group];
    for (int output = 0; output < shape[1]; ++output) {
      const uint16_t* w = table.w[group] + static_cast<size_t>(output) * shape[2];
      float sum = 0;
      for (int i = 0; i < shape[2] - (is_wrong ? 1 : 0); ++i) sum += to_float(bf16{x[i]}) * to_float(bf16{w[i]});
      table.y[group][row * table.y_strides[group] + output] = sum;
    }
  }
}

bool runs_on(int) {
  return library(kName) != Library::kNone;
}

void run(cudaStream_t, const cuda::GroupedCall& call) {
  cuda::check(begin_call("cudaLaunchKernelExC"), "products of groups by an emulated library");
  submit([call, is_wrong = library(kName) == Library::kWrong] {
    count_library_launch(kName);
    for (int group = 0; group < call.groups; ++group) multiply(call, group, is_wrong);
  });
}

const bool is_added = cuda::add_grouped_kernel(0, {"an emulated library", runs_on, run});

}  // namespace

}  // namespace turbomind::emulated
