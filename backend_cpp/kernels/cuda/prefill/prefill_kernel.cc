#include "kernels/cuda/prefill/prefill_kernel.h"

#include <deque>

namespace turbomind::cuda {

namespace {

std::deque<PrefillKernel>& kernels() {
  static std::deque<PrefillKernel> added;  // addresses stay
  return added;
}

}  // namespace

bool add_prefill_kernel(const PrefillKernel& kernel) {
  kernels().push_back(kernel);
  return true;
}

const PrefillKernel* prefill_kernel_for(int dim, int capability) {
  for (const PrefillKernel& kernel : kernels()) {
    if (kernel.dim == dim && kernel.runs_on(capability)) return &kernel;
  }
  return nullptr;
}

}  // namespace turbomind::cuda
