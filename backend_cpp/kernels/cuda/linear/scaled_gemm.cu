#include "kernels/cuda/linear/gemms.h"

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/linear/weight_slab.cuh"

// The weight is laid out row-major piece by piece, each of which stays in the second-level cache for its products;
// these are made of this many rows and outputs at once that their sums do too, until finish_kernel makes y of them.

namespace turbomind::cuda {

namespace {

constexpr size_t kPieceBytes = size_t{32} << 20;  // of the weight
constexpr int kPieceOutputs = 8192;
constexpr int kPieceRows = 1024;

// Outputs of a piece, as if each weight took 16 bits.
int piece_outputs(const LinearWeight& weight) {
  const auto row_bytes = static_cast<size_t>(gemm_inputs(weight)) * sizeof(uint16_t);
  const int requested = std::max(static_cast<int>(kPieceBytes / row_bytes) / kTileOutputs, 1) * kTileOutputs;
  return std::min({requested, kPieceOutputs, packed_shape(weight).tiles() * kTileOutputs});
}

GemmType gemm_type(const LinearWeight& weight, const Gemm& gemm) {
  if (weight.format == WeightFormat::kInt8 && weight.scales == nullptr && weight.zeros == nullptr) {
    return GemmType::kInt8;
  }
  const bool has_row_scales = weight.format == WeightFormat::kFloat8 && weight.block_scales == nullptr;
  return has_row_scales && gemm.has_float8() ? GemmType::kFloat8 : GemmType::kFloat16;
}

// y = sums times the scales of its row and output, plus bias. blockIdx.y is the row; `y` and `weight` begin at the
// piece's first.
template <class Sum, class Result>
__global__ void finish_kernel(const Sum* sums, int sums_stride, const float* row_scales, float range,
                              const float* output_scales, const float* bias, int outputs, Result* y, size_t y_stride,
                              bool accumulate) {
  await_previous();
  const int output = blockIdx.x * blockDim.x + threadIdx.x;
  if (output >= outputs) return;
  const float scale = row_scales != nullptr ? row_scales[blockIdx.y] : range;
  float value =
      static_cast<float>(sums[static_cast<size_t>(blockIdx.y) * sums_stride + output]) * scale * output_scales[output];
  if (bias != nullptr) value += bias[output];
  Result& target = y[blockIdx.y * y_stride + output];
  if constexpr (std::is_same_v<Result, float>) {
    target = accumulate ? target + value : value;
  } else {
    target = __float2bfloat16_rn(value);
  }
}

}  // namespace

int gemm_inputs(const LinearWeight& weight) {
  constexpr int kMultiple = 16;
  return divide_up(padded_inputs(weight), kMultiple) * kMultiple;
}

size_t scaled_gemm_bytes(const LinearWeight& weight, int rows) {
  const auto inputs = static_cast<size_t>(gemm_inputs(weight));
  const auto outputs = static_cast<size_t>(piece_outputs(weight));
  return scratch_bytes<uint16_t>(rows * inputs) + scratch_bytes<float>(rows) +
         scratch_bytes<uint16_t>(outputs * inputs) + scratch_bytes<float>(std::min(rows, kPieceRows) * outputs) +
         kGemmScratchBytes;
}

void scaled_gemm(cudaStream_t stream, const LinearScratch& scratch, const LinearWeight& weight,
                 const LinearInput& input, int rows, const TypedRows& result, bool accumulate) {
  const GemmType type = gemm_type(weight, *scratch.gemm);
  const bool is_bytes = type != GemmType::kFloat16;
  Scratch memory = scratch.memory;
  GemmCall call;
  call.type = type;
  call.inputs = is_bytes ? gemm_inputs(weight) : padded_inputs(weight);
  const size_t row_bytes = static_cast<size_t>(call.inputs) * (is_bytes ? 1 : sizeof(uint16_t));
  const int step = piece_outputs(weight);
  auto* rounded = memory.take<std::byte>(rows * row_bytes);
  auto* row_scales = is_bytes ? memory.take<float>(static_cast<size_t>(rows)) : nullptr;
  auto* piece = memory.take<std::byte>(step * row_bytes);
  auto* sums = memory.take<float>(static_cast<size_t>(std::min(rows, kPieceRows)) * step);
  if (is_bytes) {
    round_to_bytes(stream, input, rows, weight, {rows, call.inputs}, reinterpret_cast<uint8_t*>(rounded), row_scales);
  } else {
    round_input(stream, input, rows, weight, ChunkOrder::kSequential, call.inputs,
                reinterpret_cast<uint16_t*>(rounded));
  }
  call.w = piece;
  call.y = sums;
  for (int first = 0; first < weight.out_features; first += step) {
    const int outputs = std::min(step, weight.out_features - first);
    if (is_bytes) {
      unpack_weight(stream, weight, first, outputs, call.inputs, reinterpret_cast<uint8_t*>(piece));
    } else {
      dequantize_weight(stream, weight, first, outputs, reinterpret_cast<uint16_t*>(piece));
    }
    call.outputs = is_bytes ? divide_up(outputs, kTileOutputs) * kTileOutputs : outputs;
    call.y_stride = static_cast<size_t>(call.outputs);
    // Pieces of even size: cuBLASLt multiplies no int8 rows fewer than 17, which a last piece could have.
    const int piece_rows = divide_up(rows, divide_up(rows, kPieceRows));
    for (int row = 0; row < rows; row += piece_rows) {
      call.x = rounded + row * row_bytes;
      call.rows = std::min(piece_rows, rows - row);
      multiply(stream, *scratch.gemm, memory, call);
      constexpr int kThreads = 256;
      const dim3 grid(divide_up(outputs, kThreads), call.rows);
      const auto finish = [&]<class Sum, class Result>(const Sum* typed_sums, Result* y) {
        launch(finish_kernel<Sum, Result>, grid, dim3(kThreads), 0, stream, typed_sums, call.outputs,
               is_bytes ? row_scales + row : nullptr, kHalfRange, weight.output_scales + first,
               weight.bias != nullptr ? weight.bias + first : nullptr, outputs,
               y + static_cast<size_t>(row) * weight.out_features + first, static_cast<size_t>(weight.out_features),
               accumulate);
      };
      const auto finish_to = [&](auto* y) {
        if (type == GemmType::kInt8) return finish(reinterpret_cast<const int32_t*>(sums), y);
        finish(static_cast<const float*>(sums), y);
      };
      if (result.type == DType::kFloat32) {
        finish_to(result.floats());
      } else {
        finish_to(static_cast<__nv_bfloat16*>(result.data));
      }
    }
  }
}

}  // namespace turbomind::cuda
