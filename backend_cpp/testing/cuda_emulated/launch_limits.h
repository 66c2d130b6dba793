// Launch limits of the devices in CMAKE_CUDA_ARCHITECTURES, of compute capability 8.0 to 12.0.
#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>

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

// A GPU cannot reach memory of the host that the runtime has not allocated; the emulation reads it as any other.
// Throws Error (kInternal) when a word of an argument is the address of such memory. `number` is of the argument.
// Pointers that are in memory themselves are not looked at.
void reject_host_memory(const void* words, size_t count, int number);

template <class T>
void check_argument(T argument, int number) {
  static_assert(std::is_trivially_copyable_v<T>, "a kernel's arguments are copied as bytes");
  constexpr size_t kWords = sizeof(T) / sizeof(void*);
  if constexpr (kWords > 0) {
    // Padding may hold what was in its place before.
#if __has_builtin(__builtin_clear_padding)
    if constexpr (!std::is_pointer_v<T>) __builtin_clear_padding(&argument);
#endif
    const void* words[kWords];
    std::memcpy(words, &argument, sizeof(words));
    reject_host_memory(words, kWords, number);
  }
}

// Of a launch, in their order.
template <class... Arguments>
void check_arguments(const Arguments&... arguments) {
  int number = 0;
  (check_argument(arguments, number++), ...);
}

}  // namespace turbomind::emulated
