// Kernel override of a GPU operator: LMDEPLOY_CUDA_KERNELS is `library`, `own` or `torch` for all operators, or a
// comma-separated list of `operator=kernels`; the last entry counts.
//
// Both engines ask this table, and users are shown it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace turbomind {

enum class KernelSource : uint8_t {
  kLibrary,
  kNative,
  kTorch,
  kOff,  // of what can be done without
};

std::string_view name_of(KernelSource source);

struct KernelOperator {
  std::string_view name;
  std::string_view engine;  // turbomind or pytorch
  std::string_view what;
  std::vector<KernelSource> order;  // of trust: the first that is there, passes its self-check and is wanted
  std::string_view checked;         // by what at start; empty: by tests alone
};

const std::vector<KernelOperator>& kernel_operators();

// Environment's order for an operator; nothing: the order of trust decides. Throws Error (kInvalidArgument) for a
// value that names no operator, or kernels that it does not have. `engine` is as above.
std::optional<KernelSource> requested_kernels(std::string_view engine, std::string_view name);

}  // namespace turbomind
