// Rules of a field of a model's description, besides its type. lmdeploy/turbomind/spec/fields.py is its counterpart.
#pragma once

#include <cmath>
#include <cstdint>

namespace turbomind {

// Whatever its type can hold.
struct Anything {};

// A whole number from `low` to `high`.
struct Whole {
  int64_t low = 0;
  int64_t high = INT32_MAX;
};

// A finite number from `low` on, or above it.
struct Real {
  double low = -HUGE_VAL;
  bool excludes_low = false;
};

// A list with a value for each layer, or an empty one, which means this value for each.
template <class T>
struct PerLayer {
  T value;
};

}  // namespace turbomind
