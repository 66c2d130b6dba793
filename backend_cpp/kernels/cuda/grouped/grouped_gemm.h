// Grouped GEMMs of a layer's experts (bfloat16 or float8) by a library's kernel: inputs are gathered and rounded, and
// the table of groups is filled, on the device.
//
// Arithmetic. As of linear.h: x is rounded to bfloat16, products are exact, sums float32; y is rounded to bfloat16, off
// by at most 2^-9 |y|. With float8, x is rounded to it with a scale for each row and 128 inputs, whatever the weight's
// scales are: y is off by at most 2^-4 sum |x w| more, and what x under 2^-16 max |x| adds.
#pragma once

#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/grouped/grouped_kernel.h"
#include "kernels/cuda/quantize/round_rows.h"
#include "kernels/moe.h"

namespace turbomind::cuda {

// From this many rows of an expert on, on average, a library's kernel is worth its tiles of 128 rows, and of float8
// that weights are laid out for it.
inline constexpr int kMinGroupRows = 32;
inline constexpr int kMinFloat8GroupRows = 64;

// Weight of a group, and its rows.
struct GroupedGemm {
  LinearWeight first;        // the first expert's; all have its format and sizes
  const std::byte* weights;  // on the device: the LinearWeight of expert e is e * weight_stride further on
  size_t weight_stride;      // bytes
  int experts;
  const ExpertRows* parts;        // on the device; of an expert at most one
  const int32_t* part_count;      // on the device
  const int32_t* expert_of_pair;  // [pairs], on the device; -1: nothing is computed
  int pairs;
  LinearInput x;  // as they are or gated, [x_rows, in_features]
  int x_rows;     // of which each goes to pairs / x_rows pairs
  const int32_t*
      slots;  // [pairs], on the device: these, row by row; -1: none, nor have the row's others; null: its own
  void* y;    // [pairs, out_features] bfloat16
};

// Kernels of which type multiply such weights.
GroupedType grouped_type(const LinearWeight& weight);

size_t grouped_scratch_bytes(const LinearWeight& weight, int experts, int pairs);

void grouped_gemm(cudaStream_t stream, Scratch memory, const GroupedKernel& kernel, const GroupedGemm& product);

}  // namespace turbomind::cuda
