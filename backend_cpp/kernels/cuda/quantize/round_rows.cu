#include "kernels/cuda/quantize/round_rows.h"

#include "kernels/cuda/quantize/float8_blocks.cuh"
#include "kernels/cuda/quantize/made_rows.cuh"

// To 16 bits: a thread takes eight neighbouring inputs, it reads 16 or 32 bytes and writes 16 or 32; blockIdx.x is the
// row. Of norms a warp or a block takes a row, as the norm alone does it (norm.cu).
// To 8 bits: a block takes a row, for its scale and then for its codes; what it has made meanwhile is in shared
// memory. With scales of 128 inputs a warp has each of these.

namespace turbomind::cuda {

namespace {

constexpr int kThreads = 128;

// Where rounded rows go, [rows, chunks], or for ring_linear, whose blocks of `columns` rows have an order of their own.
struct RoundedRows {
  void* data;
  int chunks;
  int columns = 0;
  int warp_rows = 1;  // or 8, of which a warp takes four chunks each, so that ring_linear's order fills cache lines
};

// A thread's row and chunk.
struct ChunkIndex {
  int row;
  int chunk;
};
__device__ __forceinline__ ChunkIndex chunk_index(const RoundedRows& to) {
  const int thread = blockIdx.y * kThreads + threadIdx.x;
  if (to.warp_rows == 1) return {static_cast<int>(blockIdx.x), thread};
  return {static_cast<int>(blockIdx.x) * 8 + thread % kWarp / 4, thread / kWarp * 4 + thread % 4};
}

// For ring_linear: four chunks are the columns of two steps of the matrix instruction, a chunk for each quarter of its
// lanes (ring_step.cuh). Blocks of 8 columns have 16 bytes of a row, then the next's.
__device__ __forceinline__ void write_ring_chunk(const RoundedRows& to, int row, int chunk, const uint4& rounded) {
  const size_t first = (static_cast<size_t>(row / to.columns) * to.chunks + chunk / 4 * 4) * to.columns;
  uint32_t* word = static_cast<uint32_t*>(to.data) + (first + row % to.columns) * 4 + chunk % 4;
  const size_t block = static_cast<size_t>(to.columns) * 4;
  word[0] = rounded.x;
  word[block] = rounded.y;
  word[2 * block] = rounded.z;
  word[3 * block] = rounded.w;
}

// A chunk in the form that a weight of kFormat takes, which for kFloat32 is as it is.
template <WeightFormat kFormat>
__device__ __forceinline__ void write_chunk(const RoundedRows& to, int row, int chunk, const float (&values)[kChunk]) {
  const size_t index = static_cast<size_t>(row) * to.chunks + chunk;
  if constexpr (kFormat == WeightFormat::kFloat32) {
    auto* quads = static_cast<float4*>(to.data) + index * 2;
    quads[0] = make_float4(values[0], values[1], values[2], values[3]);
    quads[1] = make_float4(values[4], values[5], values[6], values[7]);
  } else {
    const uint4 rounded = round_chunk<kFormat>(values);
    if (to.columns > 0) return write_ring_chunk(to, row, chunk, rounded);
    static_cast<uint4*>(to.data)[index] = rounded;
  }
}

template <WeightFormat kFormat>
__global__ void __launch_bounds__(kThreads) round_kernel(RowsToRound from, RoundedRows rounded) {
  await_previous();
  const int chunks = rounded.chunks / from.heads;
  const auto [row, index] = chunk_index(rounded);
  if (row >= from.rows || index >= rounded.chunks) return;
  float values[kChunk];
  read_chunk(from, row * from.stride + index / chunks * from.head_stride, index % chunks * kChunk, values);
  write_chunk<kFormat>(rounded, row, index, values);
}

template <WeightFormat kFormat>
__global__ void __launch_bounds__(kThreads) round_gated_kernel(GatedRows rows, RoundedRows rounded) {
  await_previous();
  const auto [row, chunk] = chunk_index(rounded);
  if (row >= rows.from.rows || chunk >= rounded.chunks) return;
  float values[kChunk];
  rows.begin(row);
  rows.read(chunk * kChunk, values);
  write_chunk<kFormat>(rounded, row, chunk, values);
}

template <WeightFormat kFormat, int kGroup>
__global__ void __launch_bounds__(RowGroup<kGroup>::kBlock)
    round_normed_kernel(NormedRows<kGroup> rows, RoundedRows rounded) {
  await_previous();
  const int row = RowGroup<kGroup>::row();
  if (row >= rows.from.rows) return;  // as in norm_kernel
  rows.begin(row);
  for (int chunk = RowGroup<kGroup>::thread(); chunk < rounded.chunks; chunk += kGroup) {
    float values[kChunk];
    rows.read(chunk * kChunk, values);
    write_chunk<kFormat>(rounded, row, chunk, values);
  }
}

constexpr int kByteThreads = kNormThreads;
template <bool kIsFloat8>
constexpr float kLargestValue = kIsFloat8 ? kLargestFloat8 : 127.0f;

// The largest magnitude among values, and 0, or NaN where one of them is no number: which must not vanish, but make the
// scale not a number.
struct Range {
  float top = 0;
  float probe = 0;

  __device__ __forceinline__ void include(const float (&values)[kChunk]) {
#pragma unroll
    for (const float value : values) {
      top = fmaxf(top, fabsf(value));
      probe += value * 0.0f;
    }
  }
};

template <bool kIsFloat8>
__device__ __forceinline__ uint2 quantized_of(const float (&values)[kChunk], float inverse) {
  uint32_t words[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    const float value = values[i] * inverse;
    uint32_t q;
    if constexpr (kIsFloat8) {
      q = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
    } else {
      constexpr float kLargest = kLargestValue<kIsFloat8>;
      q = static_cast<uint8_t>(__float2int_rn(fminf(fmaxf(value, -kLargest), kLargest)));
    }
    words[i / 4] |= q << i % 4 * 8;
  }
  return make_uint2(words[0], words[1]);
}

// Block x is the row; those after the last are as the last.
template <bool kIsFloat8, class Rows>
__global__ void __launch_bounds__(kByteThreads)
    round_bytes_kernel(Rows rows, int padded_inputs, uint8_t* quantized, float* scales) {
  await_previous();
  rows.begin(min(static_cast<int>(blockIdx.x), rows.from.rows - 1));
  auto* kept = dynamic_shared<float>();  // [padded_inputs]: each thread reads what it has written
  const int chunks = padded_inputs / kChunk;
  Range range;
  for (int chunk = threadIdx.x; chunk < chunks; chunk += kByteThreads) {
    float values[kChunk];
    rows.read(chunk * kChunk, values);
    if constexpr (Rows::kIsMade) write_chunk<WeightFormat::kFloat32>({kept, chunks}, 0, chunk, values);
    range.include(values);
  }
  const float scale =
      block_max<kByteThreads>(range.top) / kLargestValue<kIsFloat8> + block_sum<kByteThreads>(range.probe);
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
  auto* words = reinterpret_cast<uint2*>(quantized) + static_cast<size_t>(blockIdx.x) * chunks;
  for (int chunk = threadIdx.x; chunk < chunks; chunk += kByteThreads) {
    float values[kChunk];
    if constexpr (Rows::kIsMade) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) values[i] = kept[chunk * kChunk + i];
    } else {
      rows.read(chunk * kChunk, values);
    }
    words[chunk] = quantized_of<kIsFloat8>(values, inverse_of(scale));
  }
}

// A warp rounds 128 inputs. Block x is the row, as above; y a part of its inputs, or, where a row is made together, all
// of it. scales [blocks, gridDim.x].
template <class Rows>
__global__ void __launch_bounds__(kByteThreads)
    round_blocks_kernel(Rows rows, int blocks, uint8_t* quantized, float* scales) {
  await_previous();
  constexpr int kWarps = kByteThreads / kWarp;
  rows.begin(min(static_cast<int>(blockIdx.x), rows.from.rows - 1));
  for (int block = blockIdx.y * kWarps + threadIdx.x / kWarp; block < blocks; block += gridDim.y * kWarps) {
    float values[kBlockWords];
    rows.read(block * kFloat8Block + static_cast<int>(threadIdx.x) % kWarp * kBlockWords, values);
    round_block(values).write(quantized + (static_cast<size_t>(blockIdx.x) * blocks + block) * kFloat8Block,
                              scales + static_cast<size_t>(block) * gridDim.x + blockIdx.x);
  }
}

dim3 grid_of(const RowsToRound& from, const RoundedRows& rounded) {
  return rows_and(divide_up(from.rows, rounded.warp_rows), divide_up(rounded.chunks * rounded.warp_rows, kThreads));
}

template <WeightFormat kFormat, int kGroup>
void launch_normed(cudaStream_t stream, const NormWeight& norm, const RowsToRound& from, const RoundedRows& rounded) {
  using Group = RowGroup<kGroup>;
  launch(round_normed_kernel<kFormat, kGroup>, dim3(divide_up(from.rows, Group::kRows)), dim3(Group::kBlock), 0, stream,
         NormedRows<kGroup>(norm, from), rounded);
}

template <WeightFormat kFormat>
void launch_input(cudaStream_t stream, const LinearInput& input, const RowsToRound& from, const RoundedRows& rounded) {
  if (input.gate.has_value()) {
    launch(round_gated_kernel<kFormat>, grid_of(from, rounded), dim3(kThreads), 0, stream,
           GatedRows{*input.gate, from, input.bias}, rounded);
  } else if (input.norm == nullptr) {
    launch(round_kernel<kFormat>, grid_of(from, rounded), dim3(kThreads), 0, stream, from, rounded);
  } else if (from.inputs <= kWarpFloats) {
    launch_normed<kFormat, kWarp>(stream, *input.norm, from, rounded);
  } else {
    launch_normed<kFormat, kNormThreads>(stream, *input.norm, from, rounded);
  }
}

void launch_rounding(cudaStream_t stream, const LinearInput& input, const RowsToRound& from, WeightFormat weight_format,
                     ChunkOrder order, const RoundedRows& rounded) {
  auto* launch_format = order == ChunkOrder::kInt4                 ? launch_input<WeightFormat::kInt4>
                        : weight_format == WeightFormat::kBFloat16 ? launch_input<WeightFormat::kBFloat16>
                                                                   : launch_input<WeightFormat::kFloat16>;
  launch_format(stream, input, from, rounded);
}

// Calls visit with the rows that `input` stands for.
template <class Visit>
void with_rows(const LinearInput& input, const RowsToRound& from, Visit&& visit) {
  if (input.norm != nullptr) return visit(NormedRows<kByteThreads>(*input.norm, from));
  with_inputs(input, from, visit);
}

const LinearInput kNotMade(static_cast<const float*>(nullptr));

}  // namespace

void round_rows(cudaStream_t stream, const RowsToRound& from, WeightFormat weight_format, ChunkOrder order,
                int padded_inputs, uint16_t* rounded) {
  launch_rounding(stream, kNotMade, from, weight_format, order, {rounded, padded_inputs / kChunk * from.heads});
}

void round_input(cudaStream_t stream, const LinearInput& input, int rows, const LinearWeight& weight, ChunkOrder order,
                 int padded_inputs, uint16_t* rounded) {
  launch_rounding(stream, input, rows_of(weight, input, rows), weight.format, order, {rounded, padded_inputs / kChunk});
}

void round_for_ring(cudaStream_t stream, const LinearInput& input, int rows, const LinearWeight& weight, int columns,
                    int padded_inputs, uint16_t* rounded) {
  const ChunkOrder order = weight.format == WeightFormat::kInt4 ? ChunkOrder::kInt4 : ChunkOrder::kSequential;
  launch_rounding(stream, input, rows_of(weight, input, rows), weight.format, order,
                  {rounded, padded_inputs / kChunk, columns, rows >= 8 ? 8 : 1});
}

bool can_round_to_bytes(int padded_inputs) {
  return static_cast<size_t>(padded_inputs) * sizeof(float) <= max_shared_memory();
}

void round_to_bytes(cudaStream_t stream, const LinearInput& input, int rows, const LinearWeight& weight,
                    const QuantizedShape& shape, uint8_t* quantized, float* scales) {
  with_rows(input, rows_of(weight, input, rows), [&]<class Rows>(const Rows& made) {
    auto* kernel =
        weight.format == WeightFormat::kInt8 ? round_bytes_kernel<false, Rows> : round_bytes_kernel<true, Rows>;
    launch(kernel, dim3(shape.rows), dim3(kByteThreads), Rows::kIsMade ? shape.inputs * sizeof(float) : 0, stream, made,
           shape.inputs, quantized, scales);
  });
}

void round_to_blocks(cudaStream_t stream, const LinearInput& input, int rows, const LinearWeight& weight,
                     const QuantizedShape& shape, uint8_t* quantized, float* scales) {
  const int blocks = shape.inputs / kFloat8Block;
  const int parts = input.norm != nullptr ? 1 : divide_up(blocks, kByteThreads / kWarp);
  with_rows(input, rows_of(weight, input, rows), [&]<class Rows>(const Rows& made) {
    launch(round_blocks_kernel<Rows>, rows_and(shape.rows, parts), dim3(kByteThreads), 0, stream, made, blocks,
           quantized, scales);
  });
}

void gather_input(cudaStream_t stream, const LinearInput& input, int rows, const LinearWeight& weight,
                  int padded_inputs, float* gathered) {
  launch_input<WeightFormat::kFloat32>(stream, input, rows_of(weight, input, rows), {gathered, padded_inputs / kChunk});
}

}  // namespace turbomind::cuda
