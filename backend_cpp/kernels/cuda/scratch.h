// Device memory that an operator uses within one call; the next call on the same stream uses it again.
#pragma once

#include <string>

#include "kernels/cuda/device.h"

namespace turbomind::cuda {

inline constexpr size_t kScratchAlignment = 256;

// Bytes that `Scratch::take` uses up for `count` elements.
template <class T>
size_t scratch_bytes(size_t count) {
  return divide_up(count * sizeof(T), kScratchAlignment) * kScratchAlignment;
}

// Hands out memory from front to back. Passed by value: what a callee takes is free again when it returns.
class Scratch {
 public:
  Scratch() = default;
  Scratch(void* memory, size_t bytes) : next_(static_cast<std::byte*>(memory)), left_(bytes) {}  // memory: aligned

  template <class T>
  T* take(size_t count) {
    const size_t bytes = scratch_bytes<T>(count);
    if (bytes > left_) {
      throw internal_error("an operator needs " + std::to_string(bytes) + " bytes of scratch memory, " +
                           std::to_string(left_) + " are left");
    }
    T* result = reinterpret_cast<T*>(next_);
    next_ += bytes;
    left_ -= bytes;
    return result;
  }

 private:
  std::byte* next_ = nullptr;
  size_t left_ = 0;
};

}  // namespace turbomind::cuda
