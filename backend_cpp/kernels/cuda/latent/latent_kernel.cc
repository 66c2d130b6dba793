#include "kernels/cuda/latent/latent_kernel.h"

#include <vector>

namespace turbomind::cuda {

namespace {

std::vector<LatentKernel>& kernels() {
  static std::vector<LatentKernel> added;
  return added;
}

}  // namespace

bool add_latent_kernel(const LatentKernel& kernel) {
  kernels().push_back(kernel);
  return true;
}

const LatentKernel* latent_kernel_for(int capability) {
  for (const LatentKernel& kernel : kernels()) {
    if (kernel.runs_on(capability)) return &kernel;
  }
  return nullptr;
}

}  // namespace turbomind::cuda
