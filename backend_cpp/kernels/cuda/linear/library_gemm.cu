#include "kernels/cuda/linear/gemms.h"

#include <algorithm>

#include "kernels/cuda/linear/weight_slab.cuh"
#include "kernels/cuda/quantize/float8_blocks.cuh"

namespace turbomind::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kPieceBytes = 16 << 20;  // of the weight: stays in the second-level cache for its product
constexpr int kPieceOutputs = 8192;

// scales [blocks, outputs]: of a piece of a weight, that of the block times that of the output.
__global__ void __launch_bounds__(kThreads)
    gather_scales_kernel(LinearWeight weight, int first_output, int outputs, int blocks, float* scales) {
  await_previous();
  const int output = blockIdx.x * kThreads + threadIdx.x;
  if (output >= outputs) return;
  scales[static_cast<size_t>(blockIdx.y) * outputs + output] =
      float8_scale(weight, first_output + output, blockIdx.y, blocks);
}

}  // namespace

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
  const int inputs = shape.inputs;
  const int blocks = inputs / kFloat8Block;
  const int requested = std::max(kPieceBytes / inputs / kTileOutputs, 1) * kTileOutputs;
  const int step = std::min({requested, kPieceOutputs, weight.out_features});
  Scratch memory = scratch.memory;
  auto* quantized = memory.take<uint8_t>(static_cast<size_t>(shape.rows) * inputs);
  auto* x_scales = memory.take<float>(static_cast<size_t>(shape.rows) * (scales == GemmScales::kBlocks ? blocks : 1));
  auto* piece = memory.take<uint8_t>(static_cast<size_t>(step) * inputs);
  GemmCall call;
  call.type = GemmType::kFloat8;
  call.scales = scales;
  call.x = quantized;
  call.x_scales = x_scales;
  call.w = piece;
  call.rows = shape.rows;
  call.inputs = inputs;
  call.y_stride = static_cast<size_t>(weight.out_features);
  call.accumulates = accumulate;
  call.result = result.type;
  float* block_scales = nullptr;
  if (scales == GemmScales::kBlocks) {
    block_scales = memory.take<float>(static_cast<size_t>(step) * blocks);
    round_to_blocks(stream, input, rows, weight, shape, quantized, x_scales);
  } else {
    round_to_bytes(stream, input, rows, weight, shape, quantized, x_scales);
  }
  for (int first = 0; first < weight.out_features; first += step) {
    call.outputs = std::min(step, weight.out_features - first);
    call.y = result.from(first).data;
    call.w_scales = weight.output_scales + first;
    unpack_weight(stream, weight, first, call.outputs, inputs, piece);
    if (scales == GemmScales::kBlocks) {
      launch(gather_scales_kernel, dim3(divide_up(call.outputs, kThreads), blocks), dim3(kThreads), 0, stream, weight,
             first, call.outputs, blocks, block_scales);
      call.w_scales = block_scales;
    }
    multiply(stream, *scratch.gemm, memory, call);
  }
}

}  // namespace turbomind::cuda
