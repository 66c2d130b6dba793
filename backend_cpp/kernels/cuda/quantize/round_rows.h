// Activation rounding: rows as 16- and 8-bit kernels and GEMMs read them.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/linear.h"

namespace turbomind::cuda {

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

// Layout of `input` for rows of in_features, in the order of the weight's codes; of what is gated, the first half.
inline RowsToRound rows_of(const LinearWeight& weight, const LinearInput& input, int rows) {
  const auto stride = static_cast<size_t>(weight.in_features) * (input.gate.has_value() ? 2 : 1);
  return {input.x.data, rows, stride, 1, 0, weight.in_features, weight.input_order, input.x.type};
}

// In which order a chunk of eight 16-bit inputs is written: as they are, or as tile_linear takes them with a weight of
// int4 (weight_slab.cuh).
enum class ChunkOrder : uint8_t { kSequential, kInt4 };

// rounded [rows, heads, padded_inputs]: bfloat16 for a weight of bfloat16, else half precision of x / kHalfRange;
// padded_inputs is a multiple of 8, what is beyond `inputs` is 0.
void round_rows(cudaStream_t stream, const RowsToRound& from, WeightFormat weight_format, ChunkOrder order,
                int padded_inputs, uint16_t* rounded);

// The same of what a linear layer is given, [rows, padded_inputs]: norms and activations are made in the same launch.
void round_input(cudaStream_t stream, const LinearInput& input, int rows, const LinearWeight& weight, ChunkOrder order,
                 int padded_inputs, uint16_t* rounded);

// The same as ring_linear takes it, parts of `columns` rows, of which the last may have rows that are anything. There
// are whole steps of inputs.
void round_for_ring(cudaStream_t stream, const LinearInput& input, int rows, const LinearWeight& weight, int columns,
                    int padded_inputs, uint16_t* rounded);

// Of codes: `rows` may be more than there are, whose codes are then anything. inputs is a multiple of 8, what is
// beyond those of x is 0.
struct QuantizedShape {
  int rows;
  int inputs;
};

// The same in 8 bits, codes [shape.rows, shape.inputs], each row with its own scale, scales [shape.rows]: int8 for
// a weight of int8, whose scale is max |x| / 127, else float8, whose scale is max |x| / 448. A row that holds NaN or
// infinity has the scale NaN.
void round_to_bytes(cudaStream_t stream, const LinearInput& input, int rows, const LinearWeight& weight,
                    const QuantizedShape& shape, uint8_t* quantized, float* scales);

// The same in float8 with a scale for each row and 128 inputs, scales [shape.inputs / 128, shape.rows].
void round_to_blocks(cudaStream_t stream, const LinearInput& input, int rows, const LinearWeight& weight,
                     const QuantizedShape& shape, uint8_t* quantized, float* scales);

// Whether round_to_bytes has room for rows that it makes; others may be of any length.
bool can_round_to_bytes(int padded_inputs);

// Without rounding: gathered [rows, padded_inputs] float32.
void gather_input(cudaStream_t stream, const LinearInput& input, int rows, const LinearWeight& weight,
                  int padded_inputs, float* gathered);

}  // namespace turbomind::cuda
