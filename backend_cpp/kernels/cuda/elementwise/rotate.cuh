// A head's rotation by threads that each take some of its units.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/rope.h"

namespace turbomind::cuda {

// A unit is a pair of a head, or, after the pairs and only where there are factors, a dimension that is not rotated.
inline int rotated_units(const RopeTable& table, int head_dim, const float* factors) {
  return factors != nullptr ? head_dim - table.pairs : table.pairs;
}

__device__ __forceinline__ void rotate_unit(const RopeTable& table, size_t row, int unit, const float* factors,
                                            float* head) {
  const float factor = factors != nullptr ? factors[row] : 1.0f;
  if (unit >= table.pairs) {
    head[unit + table.pairs] *= factor;
    return;
  }
  const float cosine = table.cosine[row * table.pairs + unit];
  const float sine = table.sine[row * table.pairs + unit];
  float& first = head[table.is_interleaved ? 2 * unit : unit];
  float& second = head[table.is_interleaved ? 2 * unit + 1 : unit + table.pairs];
  const float a = first;
  const float b = second;
  first = (a * cosine - b * sine) * factor;
  second = (b * cosine + a * sine) * factor;
}

}  // namespace turbomind::cuda
