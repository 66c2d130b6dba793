// Self-checks of library kernels: one is used only after it agreed with the native kernel on a small random problem.
//
// A kernel that breaks the device (an illegal address, say) breaks it for good: then LMDEPLOY_CUDA_KERNELS leaves it
// out.
#pragma once

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device/operators.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/types.h"

namespace turbomind {

// Purpose of libraries' kernels.
enum class LibraryUse { kExperts, kLatents, kPrompts, kScales };

// Whether the environment lets a library's kernels be used: LMDEPLOY_CUDA_KERNELS (base/kernel_choice.h) does not name
// others. Throws Error (kInvalidArgument) where it names what is not there.
bool may_use_library(LibraryUse use);

// Results of the two kernels. A library may differ from ours by relative * magnitude + absolute, element by element;
// what is not a number agrees with nothing.
struct SelfCheck {
  std::vector<float> native;
  std::vector<float> candidate;
  std::vector<float> magnitude;  // what a sum would be if nothing in it cancelled
  float relative = 0;
  float absolute = 0;
};

// The largest difference as a part of what it may be; infinity for one that is not a number, or without any element.
double largest_difference(const SelfCheck& check);

// Runs `run` and says whether the kernel, called `name` in what is written, may be used alongside `native`. An Error in
// it means no.
bool passes_self_check(const std::string& name, const std::function<SelfCheck()>& run);

// Numbers for self_checks, the same each time: normally distributed, each representable in bfloat16.
std::vector<float> self_check_numbers(size_t count, float deviation, unsigned seed);

// A random float8, each number as likely; and the code of the largest.
float8 random_float8(std::mt19937& engine);
inline constexpr uint8_t kLargestFloat8Bits = 0x7E;

// Host data in device memory of its own, which is not counted: a self-check gives it back.
template <class T>
AlignedBuffer on_device(Operators& ops, const std::vector<T>& data) {
  AlignedBuffer buffer = cuda::allocate(data.size() * sizeof(T));
  ops.upload(data.data(), buffer.size(), buffer.as<void>());
  return buffer;
}

}  // namespace turbomind
