// A layer's products with experts' weights of bfloat16 by a library's kernel: inputs are gathered and rounded, and the
// table of groups is filled, on the device.
//
// Arithmetic. As of linear.h: x is rounded to bfloat16, products are exact, sums float32.
#pragma once

#include "kernels/cuda/grouped/grouped_kernel.h"
#include "kernels/cuda/linear/expert_rows.h"
#include "kernels/cuda/scratch.h"
#include "kernels/linear.h"

namespace turbomind::cuda {

// From so many rows of an expert on, on average, a library's kernel is worth its tiles of 128 rows.
inline constexpr int kLeastGroupRows = 32;

// What a group is multiplied with, and its rows.
struct GroupedProduct {
  LinearWeight first;        // the first expert's; all have its format and sizes
  const std::byte* weights;  // on the device: the LinearWeight of expert e is e * weight_stride behind
  size_t weight_stride;      // bytes
  int experts;
  const ExpertRows* parts;        // on the device; of an expert at most one
  const int32_t* part_count;      // on the device
  const float* x;                 // [.., in_features]
  const int32_t* sources;         // [pairs], on the device: the row of x of each pair; null: its own
  const int32_t* expert_of_pair;  // [pairs], on the device; -1: nothing is computed
  int pairs;
  float* y;  // [pairs, out_features]
};

// Whether libraries' kernels multiply such weights.
bool is_grouped_weight(const LinearWeight& weight);

size_t grouped_scratch_bytes(const LinearWeight& weight, int experts, int pairs);

void grouped_product(cudaStream_t stream, Scratch memory, const GroupedKernel& kernel, const GroupedProduct& product);

}  // namespace turbomind::cuda
