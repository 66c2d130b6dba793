#include "device/cuda/trial.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "base/error.h"

namespace turbomind {

bool may_use_libraries() {
  const char* wanted = std::getenv("LMDEPLOY_CUDA_LIBRARIES");
  return wanted == nullptr || std::string_view(wanted) != "0";
}

double largest_difference(const Trial& trial) {
  if (trial.ours.empty() || trial.theirs.size() != trial.ours.size() || trial.magnitude.size() != trial.ours.size()) {
    return std::numeric_limits<double>::infinity();
  }
  double largest = 0;
  for (size_t i = 0; i < trial.ours.size(); ++i) {
    const double bound = double{trial.relative} * trial.magnitude[i] + trial.absolute;
    const double part = std::abs(double{trial.ours[i]} - trial.theirs[i]) / bound;
    if (!std::isfinite(part)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, part);
  }
  return largest;
}

bool passes_trial(const std::string& name, const std::function<Trial()>& run, const char* ours) {
  try {
    const double part = largest_difference(run());
    const bool passes = part <= 1;
    std::fprintf(stderr, "turbomind: %s %s %s, by %.2f of what it may differ: it is %s\n", name.c_str(),
                 passes ? "agrees with" : "DIFFERS from", ours, part, passes ? "used" : "not used");
    return passes;
  } catch (const Error& error) {
    std::fprintf(stderr, "turbomind: %s is not used, since its trial failed: %s\n", name.c_str(), error.what());
    return false;
  }
}

std::vector<float> trial_numbers(size_t count, float deviation, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> distribution(0.0f, deviation);
  std::vector<float> numbers(count);
  for (float& number : numbers) number = to_float(to_bf16(distribution(engine)));
  return numbers;
}

float8 random_float8(std::mt19937& engine) {
  constexpr uint8_t kNotANumber = 0x7F;
  constexpr uint8_t kMinusZero = 0x80;
  const auto code = static_cast<uint8_t>(engine() & 0xFF);
  return float8{(code & kNotANumber) == kNotANumber ? kMinusZero : code};
}

}  // namespace turbomind
