// A number that rows are multiplied by.
#pragma once

#include <vector>

#include "device/operators.h"

namespace turbomind {

class RowFactor {
 public:
  // With a factor of 1, applying it does nothing.
  RowFactor(Operators& ops, int max_rows, float factor) : factors_(float_buffer(ops, factor == 1 ? 0 : max_rows, 1)) {
    if (factors_.size() == 0) return;
    const std::vector<float> factors(static_cast<size_t>(max_rows), factor);
    ops.upload(factors.data(), factors_.size(), factors_.as<void>());
  }

  void apply(Operators& ops, const HeadsView& x) const {
    if (factors_.size() > 0) ops.rope({}, x, factors_.as<float>());  // no more than the factors
  }

 private:
  AlignedBuffer factors_;  // [max_rows], or empty
};

}  // namespace turbomind
