// Activations in the form in which kernels and products of 16 and 8 bits take them.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/linear.h"
#include "kernels/linear_input.h"

namespace turbomind::cuda {

// What a linear layer is given on this device: LinearInput, whose x may have 16 bits where it is gated.
struct LinearRows : LinearInput {
  LinearRows(const LinearInput& input) : LinearInput(input) {}
  LinearRows(const float* rows) : LinearInput(rows) {}

  DType type = DType::kFloat32;  // of x; kFloat16: of x / kHalfRange
  const float* bias = nullptr;   // [columns of x], to be added to x; null: 0
};

// Rows of heads, and where their inputs come from.
struct RowsToRound {
  const void* x = nullptr;
  int rows = 0;
  size_t stride = 0;  // elements from row to row
  int heads = 1;
  size_t head_stride = 0;
  int inputs = 0;                        // of a head
  const int32_t* input_order = nullptr;  // [inputs], or null: as they are
  DType type = DType::kFloat32;          // of x; kFloat16: of x / kHalfRange
};

// x [rows, in_features], float32, in the order of the weight's codes.
inline RowsToRound rows_of(const LinearWeight& weight, const float* x, int rows) {
  const auto inputs = static_cast<size_t>(weight.in_features);
  return {x, rows, inputs, 1, 0, weight.in_features, weight.input_order, DType::kFloat32};
}

// In which order a chunk of eight 16-bit inputs is written: as they are, or as tile_linear takes them with a weight of
// int4 (weight_slab.cuh).
enum class ChunkOrder : uint8_t { kPlain, kInt4 };

// rounded [rows, heads, padded_inputs]: bfloat16 for a weight of bfloat16, else half precision of x / kHalfRange;
// padded_inputs is a multiple of 8, what lies beyond `inputs` is 0.
void round_rows(cudaStream_t stream, const RowsToRound& from, WeightFormat weight_format, ChunkOrder order,
                int padded_inputs, uint16_t* rounded);

// The same of what a linear layer is given, [rows, padded_inputs]: norms and activations are made in the same launch.
void round_input(cudaStream_t stream, const LinearRows& input, int rows, const LinearWeight& weight, ChunkOrder order,
                 int padded_inputs, uint16_t* rounded);

// Rows (of one head) in 8 bits, each with a scale of its own, scales [rows]: int8 for a weight of int8, whose scale is
// max |x| / 127, else float8, whose scale is max |x| / 448. x is float32. codes [rows, padded_inputs]; padded_inputs is
// a multiple of 4, what lies beyond `inputs` is 0. A row that holds NaN or infinity has the scale NaN.
void round_rows_to_bytes(cudaStream_t stream, const RowsToRound& from, WeightFormat weight_format, int padded_inputs,
                         uint8_t* codes, float* scales);

// Without rounding: gathered [rows, heads, padded_inputs] float32.
void gather_inputs(cudaStream_t stream, const RowsToRound& from, int padded_inputs, float* gathered);

}  // namespace turbomind::cuda
