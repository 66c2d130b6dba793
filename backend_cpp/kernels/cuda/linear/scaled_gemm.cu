#include "kernels/cuda/linear/gemms.h"

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/linear/weight_slab.cuh"
#include "kernels/cuda/quantize/float8_blocks.cuh"

// The weight is laid out row-major piece by piece, each of which stays in the second-level cache for its products;
// these are made of this many rows and outputs at once that their sums do too, until finish_kernel makes y of them.

namespace turbomind::cuda {

namespace {

constexpr size_t kPieceBytes = size_t{32} << 20;  // of the weight
constexpr int kPieceOutputs = 8192;
constexpr int kPieceRows = 1024;
constexpr int kThreads = 256;

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

// scales [blocks, outputs]: that of the block times that of the output.
__global__ void gather_scales_kernel(LinearWeight weight, int blocks, float* scales) {
  await_previous();
  const int output = blockIdx.x * kThreads + threadIdx.x;
  if (output >= weight.out_features) return;
  scales[static_cast<size_t>(blockIdx.y) * weight.out_features + output] =
      float8_scale(weight, output, blockIdx.y, blocks);
}

}  // namespace

int gemm_inputs(const LinearWeight& weight) {
  constexpr int kMultiple = 16;
  return divide_up(padded_inputs(weight), kMultiple) * kMultiple;
}

// As if each weight took 16 bits.
int piece_outputs(const LinearWeight& weight) {
  const auto row_bytes = static_cast<size_t>(gemm_inputs(weight)) * sizeof(uint16_t);
  const int requested = std::max(static_cast<int>(kPieceBytes / row_bytes) / kTileOutputs, 1) * kTileOutputs;
  return std::min({requested, kPieceOutputs, packed_shape(weight).tiles() * kTileOutputs});
}

size_t scaled_gemm_bytes(const LinearWeight& weight, int rows) {
  const auto inputs = static_cast<size_t>(gemm_inputs(weight));
  const auto outputs = static_cast<size_t>(piece_outputs(weight));
  const size_t piece =
      scratch_bytes<uint16_t>(outputs * inputs) + scratch_bytes<float>(std::min(rows, kPieceRows) * outputs);
  const size_t block_scales = scratch_bytes<float>(weight.out_features * divide_up(inputs, size_t{kFloat8Block}));
  return scratch_bytes<uint16_t>(rows * inputs) + scratch_bytes<float>(rows) + std::max(piece, block_scales) +
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
  call.y = sums;
  for (int first = 0; first < weight.out_features; first += step) {
    const int outputs = std::min(step, weight.out_features - first);
    if (is_bytes) {
      call.w = unpack_weight(stream, weight, first, outputs, call.inputs, reinterpret_cast<uint8_t*>(piece));
    } else {
      call.w = piece;
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

GemmScales library_scales(const LinearWeight& weight) {
  if (weight.format != WeightFormat::kFloat8 || weight.output_scales == nullptr || weight.bias != nullptr ||
      weight.out_features % kTileOutputs != 0 || padded_inputs(weight) % kTileOutputs != 0) {
    return GemmScales::kNone;
  }
  if (weight.block_scales == nullptr) return GemmScales::kRows;
  return weight.group == kFloat8Block ? GemmScales::kBlocks : GemmScales::kNone;
}

void library_gemm(cudaStream_t stream, const LinearScratch& scratch, const LinearWeight& weight, GemmScales scales,
                  const LinearInput& input, int rows, const TypedRows& result, bool accumulate) {
  const QuantizedShape shape{divide_up(rows, kLibraryRows) * kLibraryRows, padded_inputs(weight)};
  const int blocks = scales == GemmScales::kBlocks ? shape.inputs / kFloat8Block : 1;
  Scratch memory = scratch.memory;
  auto* quantized = memory.take<uint8_t>(static_cast<size_t>(shape.rows) * shape.inputs);
  auto* x_scales = memory.take<float>(static_cast<size_t>(shape.rows) * blocks);
  GemmCall call;
  call.type = GemmType::kFloat8;
  call.scales = scales;
  call.x = quantized;
  call.x_scales = x_scales;
  call.w = weight.data;
  call.w_scales = weight.output_scales;
  call.y = result.data;
  call.rows = shape.rows;
  call.outputs = weight.out_features;
  call.inputs = shape.inputs;
  call.y_stride = static_cast<size_t>(weight.out_features);
  call.accumulates = accumulate;
  call.result = result.type;
  if (scales == GemmScales::kBlocks) {
    auto* block_scales = memory.take<float>(static_cast<size_t>(weight.out_features) * blocks);
    round_to_blocks(stream, input, rows, weight, shape, quantized, x_scales);
    launch(gather_scales_kernel, dim3(divide_up(weight.out_features, kThreads), blocks), dim3(kThreads), 0, stream,
           weight, blocks, block_scales);
    call.w_scales = block_scales;
  } else {
    round_to_bytes(stream, input, rows, weight, shape, quantized, x_scales);
  }
  multiply(stream, *scratch.gemm, memory, call);
}

}  // namespace turbomind::cuda
