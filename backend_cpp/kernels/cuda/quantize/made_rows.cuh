// Prologues of kernels that round rows: neighbouring ones of a row, four or eight, as they are, gated or normed.
//
// All threads of a row call begin(row), and then each read(input, values); beyond the last input there is 0.
#pragma once

#include "kernels/cuda/elementwise/activated.cuh"
#include "kernels/cuda/elementwise/row_norm.cuh"
#include "kernels/cuda/quantize/read_rows.cuh"

namespace turbomind::cuda {

struct RowsAsTheyAre {
  static constexpr bool kIsMade = false;

  __device__ __forceinline__ void begin(int row) { first = row * from.stride; }
  template <int kCount>
  __device__ __forceinline__ void read(int input, float (&values)[kCount]) const {
    read_chunk(from, first, input, values);
  }

  RowsToRound from;
  size_t first = 0;
};

// from: gate_up with the inputs of the result. bias [2 inputs], or null.
struct GatedRows {
  static constexpr bool kIsMade = true;

  __device__ __forceinline__ void begin(int row) { gate = row * from.stride; }
  template <int kCount>
  __device__ __forceinline__ void read(int input, float (&values)[kCount]) const {
    float up[kCount];
    read_chunk(from, gate, input, values);
    read_chunk(from, gate + from.inputs, input, up);
    if (bias != nullptr) {
      add(bias, input, values);
      add(bias + from.inputs, input, up);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = input + i < from.inputs ? activated(activation, values[i], up[i]) : 0.0f;
    }
  }
  template <int kCount>
  __device__ __forceinline__ void add(const float* biases, int input, float (&values)[kCount]) const {
    float added[kCount];
    read_chunk(from, biases, input, added);
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] += added[i];
  }

  Activation activation;
  RowsToRound from;
  const float* bias;
  size_t gate = 0;
};

// from: float32 rows, each of a RowGroup of kGroup threads.
template <int kGroup>
struct NormedRows {
  static constexpr bool kIsMade = true;

  NormedRows(const NormWeight& weight, const RowsToRound& rows)
      : norm(weight), from(rows), is_vector(rows.inputs % 4 == 0 && is_float4(rows.x) && is_float4(weight.weight)) {}

  __device__ __forceinline__ void begin(int row) {
    x = static_cast<const float*>(from.x) + row * from.stride;
    row_norm = is_vector ? norm_of_row<kGroup, float4>(norm, x, from.inputs)
                         : norm_of_row<kGroup, float>(norm, x, from.inputs);
  }
  template <int kCount>
  __device__ __forceinline__ void read(int input, float (&values)[kCount]) const {
    float scales[kCount];
    float biases[kCount];
    read_chunk(from, x, input, values);
    read_chunk(from, norm.weight, input, scales);
    if (norm.bias != nullptr) read_chunk(from, norm.bias, input, biases);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float value = row_norm(values[i], scales[i], norm.bias != nullptr ? biases + i : nullptr);
      values[i] = input + i < from.inputs ? value : 0.0f;
    }
  }

  NormWeight norm;
  RowsToRound from;
  bool is_vector;
  const float* x = nullptr;
  RowNorm row_norm{};
};

// Calls visit with what reads rows that are no norm's.
template <class Visit>
void with_inputs(const LinearInput& input, const RowsToRound& from, Visit&& visit) {
  if (input.gate.has_value()) {
    visit(GatedRows{*input.gate, from, input.bias});
  } else {
    visit(RowsAsTheyAre{from});
  }
}

}  // namespace turbomind::cuda
