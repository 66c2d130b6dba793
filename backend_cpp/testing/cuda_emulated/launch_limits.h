// What the devices that are named in CMAKE_CUDA_ARCHITECTURES launch, of compute capability 8.0 to 12.0.
#pragma once

#include <cstddef>

#include "testing/cuda_emulated/block.h"
#include "testing/cuda_emulated/runtime.h"

namespace turbomind::emulated {

// Whether a grid of 2^31 - 1 by 65,535 by 65,535 blocks holds such a one, and so on.
cudaError_t check_launch(dim3 grid, dim3 block, size_t shared_bytes);

// Shared memory that a block may have, in bytes: at first that of compute capability 9.0.
void set_shared_memory(size_t bytes);
size_t shared_memory();

// While set, kernels are checked, and not run: for launches that would take too long.
void set_only_checks_launches(bool only_checks);
bool only_checks_launches();

// The same of this thread, and for everything that is given to a stream: warm-up would take most of a test's time.
class OnlyChecking {
 public:
  OnlyChecking();
  ~OnlyChecking();
  OnlyChecking(const OnlyChecking&) = delete;
  OnlyChecking& operator=(const OnlyChecking&) = delete;
};

}  // namespace turbomind::emulated
