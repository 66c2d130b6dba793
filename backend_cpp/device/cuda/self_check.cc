#include "device/cuda/self_check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "base/kernel_choice.h"

namespace turbomind {

bool may_use_library(LibraryUse use) {
  static constexpr std::array<std::string_view, 4> kNames = {"experts", "latents", "prompts", "scales"};
  const auto requested = requested_kernels("turbomind", kNames[static_cast<size_t>(use)]);
  return !requested || *requested == KernelSource::kLibrary;
}

double largest_difference(const SelfCheck& check) {
  if (check.native.empty() || check.candidate.size() != check.native.size() ||
      check.magnitude.size() != check.native.size()) {
    return std::numeric_limits<double>::infinity();
  }
  double largest = 0;
  for (size_t i = 0; i < check.native.size(); ++i) {
    const double bound = double{check.relative} * check.magnitude[i] + check.absolute;
    const double part = std::abs(double{check.native[i]} - check.candidate[i]) / bound;
    if (!std::isfinite(part)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, part);
  }
  return largest;
}

bool passes_self_check(const std::string& name, const std::function<SelfCheck()>& run) {
  try {
    const double part = largest_difference(run());
    const bool passes = part <= 1;
    std::fprintf(stderr, "turbomind: %s %s ours, by %.2f of what it may differ: it is %s\n", name.c_str(),
                 passes ? "agrees with" : "DIFFERS from", part, passes ? "used" : "not used");
    return passes;
  } catch (const Error& error) {
    std::fprintf(stderr, "turbomind: %s is not used, since its self-check failed: %s\n", name.c_str(), error.what());
    return false;
  }
}

std::vector<float> self_check_numbers(size_t count, float deviation, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> distribution(0.0f, deviation);
  std::vector<float> numbers(count);
  for (float& number : numbers) number = to_float(to_bf16(distribution(engine)));
  return numbers;
}

float8 random_float8(std::mt19937& engine) {
  constexpr uint8_t kNotANumber = 0x7F;
  constexpr uint8_t kMinusZero = 0x80;
  const auto value = static_cast<uint8_t>(engine() & 0xFF);
  return float8{(value & kNotANumber) == kNotANumber ? kMinusZero : value};
}

}  // namespace turbomind
