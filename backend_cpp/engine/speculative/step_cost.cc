#include "engine/speculative/step_cost.h"

#include <algorithm>
#include <bit>

namespace turbomind {

namespace {

constexpr double kNewest = 0.02;  // weight of the newest step in the means
// Until steps of several sizes were seen: a token costs so much of a step of one token, // tokens vary by so much.
constexpr double kExpectedShare = 0.15;
constexpr double kExpectedVariance = 0.25;
constexpr double kUnusual = 8;  // a step that takes this many times as long as expected waited for something else

}  // namespace

int StepCost::computed_tokens(int tokens) {
  const auto rest = static_cast<unsigned>(tokens % kTogether);
  return tokens / kTogether * kTogether + (rest > 0 ? static_cast<int>(std::bit_ceil(rest)) : 0);
}

void StepCost::note(int tokens, double seconds) {
  if (tokens < 1 || tokens > kMaxTokens || seconds <= 0) return;
  if (weight_ > 0 && seconds > kUnusual * of(tokens)) return;
  weight_ += 1;
  const double share = std::max(kNewest, 1 / weight_);
  const auto learn = [&](double& mean, double value) { mean += share * (value - mean); };
  const double computed = computed_tokens(tokens);
  learn(tokens_, computed);
  learn(seconds_, seconds);
  learn(product_, computed * seconds);
  learn(square_, computed * computed);
}

double StepCost::token() const {
  const double variance = std::max(0.0, square_ - tokens_ * tokens_);
  const double covariance = product_ - tokens_ * seconds_;
  const double expected = seconds_ * kExpectedShare / (1 + kExpectedShare * (tokens_ - 1));
  const double slope = (covariance + kExpectedVariance * expected) / (variance + kExpectedVariance);
  return std::clamp(slope, 0.01 * expected, seconds_ / tokens_);
}

double StepCost::seconds_of(double tokens) const {
  return weight_ == 0 ? 1 + kExpectedShare * (tokens - 1) : seconds_ + token() * (tokens - tokens_);
}

}  // namespace turbomind
