// Packed codes of 8 bits as rows of a matrix (gemms.h): a lane takes four inputs of one output, a warp 8 outputs
// of 16 inputs.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/packed_weight.h"

namespace turbomind::cuda {

inline constexpr int kUnpackThreads = 256;
inline constexpr int kUnpackOutputs = 8;  // of a block

// outputs: a multiple of 8. Whole weights may be along z.
inline dim3 unpack_grid(int outputs, int padded_inputs, int weights = 1) {
  return {static_cast<unsigned>(divide_up(padded_inputs / 4, kUnpackThreads / kWarp * 4)),
          static_cast<unsigned>(outputs / kUnpackOutputs), static_cast<unsigned>(weights)};
}

// plain [outputs, padded_inputs / 4] words, of int8 less 128; 0 beyond the weight's inputs.
__device__ __forceinline__ void unpack_words(const LinearWeight& weight, int first_output, int outputs,
                                             int padded_inputs, uint32_t* unpacked) {
  const int lane = threadIdx.x % kWarp;
  const int quad = (blockIdx.x * (kUnpackThreads / kWarp) + threadIdx.x / kWarp) * 4 + lane % 4;
  const int row = blockIdx.y * kUnpackOutputs + lane / 4;
  if (quad >= padded_inputs / 4 || row >= outputs) return;
  const int quads = divide_up(weight.in_features, weight.group) * weight.group / 4;
  const int tile = (first_output + row) / kTileOutputs;
  const int column = (first_output + row) % kTileOutputs;
  const auto* words = static_cast<const uint32_t*>(weight.data);
  const uint32_t flipped = weight.format == WeightFormat::kInt8 ? 0x80808080u : 0;
  unpacked[static_cast<size_t>(row) * (padded_inputs / 4) + quad] =
      quad < quads ? words[(static_cast<size_t>(tile) * quads + quad) * kTileOutputs + column] ^ flipped : 0;
}

}  // namespace turbomind::cuda
