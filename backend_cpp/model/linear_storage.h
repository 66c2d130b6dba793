// One linear layer's weight in memory.
#pragma once

#include <functional>

#include "base/aligned_buffer.h"
#include "kernels/linear.h"

namespace turbomind {

// Owns what `view` points to.
struct LinearStorage {
  AlignedBuffer data;
  AlignedBuffer scales;
  AlignedBuffer zeros;
  AlignedBuffer input_order;
  AlignedBuffer bias;
  LinearWeight view;
};

// Runs body(index) for each index; here or, for work that is not inside a parallel loop already, on a pool.
using Loop = std::function<void(int count, const std::function<void(int)>& body)>;
inline void in_order(int count, const std::function<void(int)>& body) {
  for (int index = 0; index < count; ++index) body(index);
}

}  // namespace turbomind
