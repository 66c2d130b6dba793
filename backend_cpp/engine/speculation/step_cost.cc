#include "engine/speculation/step_cost.h"

#include <algorithm>

namespace turbomind {

namespace {

constexpr double kNewest = 0.02;  // weight of the newest step in the means
// Until steps of several sizes were seen: a row costs so much of a step of one row, as if steps had been seen whose
// rows vary by so much.
constexpr double kExpectedShare = 0.15;
constexpr double kExpectedVariance = 0.25;
constexpr double kUnusual = 8;  // a step that takes so many times as long as expected waited for something else

}  // namespace

void StepCost::note(int rows, double seconds) {
  if (rows < 1 || rows > kMostRows || seconds <= 0) return;
  if (weight_ > 0 && seconds > kUnusual * of(rows)) return;
  weight_ += 1;
  const double share = std::max(kNewest, 1 / weight_);
  const auto learn = [&](double& mean, double value) { mean += share * (value - mean); };
  learn(rows_, rows);
  learn(seconds_, seconds);
  learn(product_, rows * seconds);
  learn(square_, static_cast<double>(rows) * rows);
}

double StepCost::row() const {
  if (weight_ == 0) return kExpectedShare;
  const double variance = std::max(0.0, square_ - rows_ * rows_);
  const double covariance = product_ - rows_ * seconds_;
  const double expected = seconds_ * kExpectedShare / (1 + kExpectedShare * (rows_ - 1));
  const double slope = (covariance + kExpectedVariance * expected) / (variance + kExpectedVariance);
  return std::clamp(slope, 0.01 * expected, seconds_ / rows_);
}

double StepCost::base() const {
  return weight_ == 0 ? 1 - kExpectedShare : seconds_ - row() * rows_;
}

}  // namespace turbomind
