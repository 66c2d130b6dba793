// Registry of library kernels, by kind: LatentKernel, PrefillKernel, GroupedKernel.
#pragma once

#include <algorithm>
#include <deque>

#include "kernels/cuda/device.h"

namespace turbomind::cuda {

template <class Kernel>
std::deque<Kernel>& library_kernels() {
  static std::deque<Kernel> added;  // addresses stay
  return added;
}

// How a unit that was built with a library says so, before main() begins.
template <class Kernel>
bool add_library_kernel(const Kernel& kernel) {
  library_kernels<Kernel>().push_back(kernel);
  return true;
}

// The first of those added that runs on the current device, and that `fits`; null when there is none.
template <class Kernel, class Fits>
const Kernel* find_library_kernel(Fits&& fits) {
  const std::deque<Kernel>& all = library_kernels<Kernel>();
  const auto found = std::ranges::find_if(
      all, [&](const Kernel& kernel) { return kernel.runs_on(compute_capability()) && fits(kernel); });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace turbomind::cuda
