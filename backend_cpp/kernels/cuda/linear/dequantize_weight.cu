#include "kernels/cuda/linear/gemms.h"

#include "kernels/cuda/linear/unpack_quantized.cuh"
#include "kernels/cuda/linear/weight_slab.cuh"

// A lane takes a chunk of one output; a warp 8 neighbouring outputs of 4 neighbouring chunks, so that it reads and
// writes whole sectors.

namespace turbomind::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarpOutputs = 8;

template <WeightFormat kFormat>
__global__ void __launch_bounds__(kThreads) dequantize_weight_kernel(LinearWeight weight, int first_output, int outputs,
                                                                     int padded_inputs, uint16_t* dequantized) {
  await_previous();
  const int chunks = padded_inputs / kChunk;
  const int lane = threadIdx.x % kWarp;
  const int chunk = (blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp) * kSlabChunks + lane % kSlabChunks;
  const int row = blockIdx.y * kWarpOutputs + lane / kSlabChunks;
  if (chunk >= chunks || row >= outputs) return;
  const int tile = (first_output + row) / kTileOutputs;
  const int column = (first_output + row) % kTileOutputs;
  const size_t groups = padded_inputs / weight.group;
  const size_t entry = (tile * groups + chunk * kChunk / weight.group) * kTileOutputs + column;
  const auto* words = static_cast<const uint32_t*>(weight.data);
  words += weight.is_row_major
               ? (static_cast<size_t>(first_output + row) * chunks + chunk) * 2
               : (static_cast<size_t>(tile) * chunks + chunk) * (SlabFormat<kFormat>::kLoads * kTileOutputs) + column;
  const int stride = weight.is_row_major ? 1 : kTileOutputs;
  const uint32_t flipped = weight.is_row_major && kFormat == WeightFormat::kInt8 ? 0x80808080u : 0;
  const uint32_t zero = weight.zeros != nullptr ? weight.zeros[entry] : kFormat == WeightFormat::kInt4 ? 8 : 128;
  const uint32_t low = 0x64006400u | zero | zero << 16;
  uint32_t pairs[4];
  if constexpr (kFormat == WeightFormat::kInt4) {
    uint32_t split[4];
    dequantize_int4(words[0], low, 0xD400D400u | (zero | zero << 16) << 4, split);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[i] = __byte_perm(split[i / 2], split[i / 2 + 2], i % 2 == 0 ? 0x5410 : 0x7632);
    }
  } else if constexpr (kFormat == WeightFormat::kInt8) {
    dequantize_int8(words[0] ^ flipped, low, pairs);
    dequantize_int8(words[stride] ^ flipped, low, pairs + 2);
  } else {
    upcast_float8(words[0], pairs);
    upcast_float8(words[stride], pairs + 2);
  }
  if constexpr (kFormat == WeightFormat::kFloat8) {
    const float scale = kFloat8Range * (weight.block_scales != nullptr ? weight.block_scales[entry] : 1.0f);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = __half22float2(bits_as<__half2>(pairs[i]));
      pairs[i] = bits_as<uint32_t>(__floats2half2_rn(pair.x * scale, pair.y * scale));
    }
  } else if (weight.scales != nullptr) {
    const uint32_t scale_bits = weight.scales[entry].bits;
    const auto scale = bits_as<__half2>(scale_bits | scale_bits << 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = bits_as<uint32_t>(__hmul2(bits_as<__half2>(pairs[i]), scale));
  }
  *reinterpret_cast<uint4*>(dequantized + static_cast<size_t>(row) * padded_inputs + chunk * kChunk) =
      make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

__global__ void __launch_bounds__(kUnpackThreads)
    unpack_weight_kernel(LinearWeight weight, int first_output, int outputs, int padded_inputs, uint32_t* unpacked) {
  await_previous();
  unpack_words(weight, first_output, outputs, padded_inputs, unpacked);
}

}  // namespace

void dequantize_weight(cudaStream_t stream, const LinearWeight& weight, int first_output, int outputs,
                       uint16_t* dequantized) {
  const int padded_inputs = packed_shape(weight).padded_features();
  const dim3 grid(divide_up(padded_inputs / kChunk, kThreads / kWarp * kSlabChunks), divide_up(outputs, kWarpOutputs));
  auto* kernel = weight.format == WeightFormat::kInt4     ? dequantize_weight_kernel<WeightFormat::kInt4>
                 : weight.format == WeightFormat::kFloat8 ? dequantize_weight_kernel<WeightFormat::kFloat8>
                                                          : dequantize_weight_kernel<WeightFormat::kInt8>;
  launch(kernel, grid, dim3(kThreads), 0, stream, weight, first_output, outputs, padded_inputs, dequantized);
}

const uint8_t* unpack_weight(cudaStream_t stream, const LinearWeight& weight, int first_output, int outputs,
                             int padded_inputs, uint8_t* unpacked) {
  if (weight.is_row_major) {
    return static_cast<const uint8_t*>(weight.data) + static_cast<size_t>(first_output) * padded_inputs;
  }
  outputs = divide_up(outputs, kTileOutputs) * kTileOutputs;  // a tile's codes beyond the weight stand for 0
  launch(unpack_weight_kernel, unpack_grid(outputs, padded_inputs), dim3(kUnpackThreads), 0, stream, weight,
         first_output, outputs, padded_inputs, reinterpret_cast<uint32_t*>(unpacked));
  return unpacked;
}

}  // namespace turbomind::cuda
