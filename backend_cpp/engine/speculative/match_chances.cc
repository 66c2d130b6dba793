#include "engine/speculative/match_chances.h"

#include <algorithm>
#include <bit>

namespace turbomind {

namespace {

constexpr double kPriorWeight = 4;    // of what is expected, in tokens seen
constexpr double kForgetting = 0.97;  // of what was seen, with each token more
constexpr std::array kGuess{0.3, 0.2, 0.3, 0.45, 0.6, 0.75, 0.85, 0.9};

}  // namespace

size_t MatchChances::class_of(int length) {
  if (length <= 0) return 0;
  const int bits = std::bit_width(static_cast<unsigned>(length - 1));
  return std::min(static_cast<size_t>(bits) + 1, kClasses - 1);
}

void MatchChances::note(int length, bool came) {
  Seen& seen = seen_[class_of(length)];
  seen.all = seen.all * kForgetting + 1;
  seen.came = seen.came * kForgetting + (came ? 1 : 0);
}

double MatchChances::of_class(size_t index) const {
  static_assert(kGuess.size() == kClasses);
  const double expected = prior_ != nullptr ? prior_->of_class(index) : kGuess[index];
  return (seen_[index].came + kPriorWeight * expected) / (seen_[index].all + kPriorWeight);
}

}  // namespace turbomind
