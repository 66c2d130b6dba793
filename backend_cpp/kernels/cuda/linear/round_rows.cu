#include "kernels/cuda/linear/round_rows.h"

#include "kernels/cuda/elementwise/activated.cuh"
#include "kernels/cuda/elementwise/row_norm.cuh"
#include "kernels/cuda/linear/weight_slab.cuh"
#include "kernels/cuda/widen.cuh"

// To 16 bits: a thread takes eight neighbouring inputs, it reads 16 or 32 bytes and writes 16 or 32; blockIdx.x is the
// row.
// Of norms: as the norm alone does it (norm.cu), and then the same.
// To 8 bits: a block takes a row and reads it twice, for its scale and for its codes.

namespace turbomind::cuda {

namespace {

constexpr int kThreads = 128;

// The chunk's inputs of one head; 0 beyond the last.
template <class Element>
__device__ __forceinline__ void read_chunk(const RowsToRound& from, const Element* head, int input,
                                           float (&values)[kChunk]) {
  const Element* x = head + input;
  if (from.input_order == nullptr && input + kChunk <= from.inputs && reinterpret_cast<uintptr_t>(x) % 16 == 0) {
    constexpr int kWidth = sizeof(uint4) / sizeof(Element);
#pragma unroll
    for (int first = 0; first < kChunk; first += kWidth) {
      const uint4 vector = *reinterpret_cast<const uint4*>(x + first);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values[first + i] = widen(reinterpret_cast<const Element*>(&vector)[i]);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    const bool is_there = input + i < from.inputs;
    values[i] = !is_there ? 0.0f : widen(from.input_order != nullptr ? head[from.input_order[input + i]] : x[i]);
  }
}

// The same of x of any type; the head begins `first` elements behind x.
__device__ __forceinline__ void read_chunk(const RowsToRound& from, size_t first, int input, float (&values)[kChunk]) {
  switch (from.type) {
    case DType::kFloat32:
      return read_chunk(from, static_cast<const float*>(from.x) + first, input, values);
    case DType::kBFloat16:
      return read_chunk(from, static_cast<const bf16*>(from.x) + first, input, values);
    case DType::kFloat16:
      read_chunk(from, static_cast<const half*>(from.x) + first, input, values);
#pragma unroll
      for (float& value : values) value *= kHalfRange;
  }
}

// Visits chunks of rows: visit(index of the chunk among all, values).
template <class Visit>
__device__ __forceinline__ void for_chunk(const RowsToRound& from, int padded_inputs, Visit&& visit) {
  const int chunks = padded_inputs / kChunk;
  const int index = blockIdx.y * kThreads + threadIdx.x;
  if (index >= chunks * from.heads) return;
  float values[kChunk];
  read_chunk(from, blockIdx.x * from.stride + index / chunks * from.head_stride, index % chunks * kChunk, values);
  visit(static_cast<size_t>(blockIdx.x) * chunks * from.heads + index, values);
}

template <WeightFormat kFormat>
__global__ void __launch_bounds__(kThreads) round_kernel(RowsToRound from, int padded_inputs, uint16_t* rounded) {
  await_previous();
  for_chunk(from, padded_inputs, [&](size_t chunk, const float (&values)[kChunk]) {
    *reinterpret_cast<uint4*>(rounded + chunk * kChunk) = round_chunk<kFormat>(values);
  });
}

__device__ __forceinline__ void add_chunk(const RowsToRound& from, const float* bias, int input,
                                          float (&values)[kChunk]) {
  if (bias == nullptr) return;
  float added[kChunk];
  read_chunk(from, bias, input, added);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) values[i] += added[i];
}

// from: gate_up; its inputs are those of the result.
template <WeightFormat kFormat>
__global__ void __launch_bounds__(kThreads)
    round_gated_kernel(Activation activation, RowsToRound from, const float* bias, int padded_inputs,
                       uint16_t* rounded) {
  await_previous();
  const int chunk = blockIdx.y * kThreads + threadIdx.x;
  if (chunk >= padded_inputs / kChunk) return;
  const size_t gate = blockIdx.x * from.stride;
  float values[kChunk];
  float up[kChunk];
  read_chunk(from, gate, chunk * kChunk, values);
  read_chunk(from, gate + from.inputs, chunk * kChunk, up);
  add_chunk(from, bias, chunk * kChunk, values);
  add_chunk(from, bias != nullptr ? bias + from.inputs : nullptr, chunk * kChunk, up);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    values[i] = chunk * kChunk + i < from.inputs ? activated(activation, values[i], up[i]) : 0.0f;
  }
  const size_t place = static_cast<size_t>(blockIdx.x) * padded_inputs + chunk * kChunk;
  *reinterpret_cast<uint4*>(rounded + place) = round_chunk<kFormat>(values);
}

template <WeightFormat kFormat, int kGroup, class Vector>
__global__ void __launch_bounds__(RowGroup<kGroup>::kBlock)
    round_normed_kernel(NormWeight norm, RowsToRound from, int padded_inputs, uint16_t* rounded) {
  await_previous();
  const int row = RowGroup<kGroup>::row();
  if (row >= from.rows) return;  // as in norm_kernel
  const float* x = static_cast<const float*>(from.x) + row * from.stride;
  const RowNorm own = norm_of_row<kGroup, Vector>(norm, x, from.inputs);
  uint16_t* to = rounded + static_cast<size_t>(row) * padded_inputs;
  for (int input = RowGroup<kGroup>::thread() * kChunk; input < padded_inputs; input += kGroup * kChunk) {
    float values[kChunk];
    float scales[kChunk];
    float biases[kChunk];
    read_chunk(from, x, input, values);
    read_chunk(from, norm.weight, input, scales);
    if (norm.bias != nullptr) read_chunk(from, norm.bias, input, biases);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const float value = own(values[i], scales[i], norm.bias != nullptr ? biases + i : nullptr);
      values[i] = input + i < from.inputs ? value : 0.0f;
    }
    *reinterpret_cast<uint4*>(to + input) = round_chunk<kFormat>(values);
  }
}

__global__ void __launch_bounds__(kThreads) gather_kernel(RowsToRound from, int padded_inputs, float* gathered) {
  await_previous();
  for_chunk(from, padded_inputs, [&](size_t chunk, const float (&values)[kChunk]) {
    auto* to = reinterpret_cast<float4*>(gathered + chunk * kChunk);
    to[0] = make_float4(values[0], values[1], values[2], values[3]);
    to[1] = make_float4(values[4], values[5], values[6], values[7]);
  });
}

constexpr int kByteThreads = 256;
constexpr float kLeastScale = 1e-37f;  // of which there is an inverse

template <bool kIsFloat8>
__global__ void __launch_bounds__(kByteThreads)
    round_bytes_kernel(RowsToRound from, int padded_inputs, uint8_t* codes, float* scales) {
  await_previous();
  const float* x = static_cast<const float*>(from.x) + blockIdx.x * from.stride;
  const auto input = [&](int i) { return from.input_order != nullptr ? x[from.input_order[i]] : x[i]; };
  float top = 0;
  float probe = 0;  // NaN and infinity must not vanish: they make the scale not a number
  for (int i = threadIdx.x; i < from.inputs; i += kByteThreads) {
    const float value = input(i);
    top = fmaxf(top, fabsf(value));
    probe += value * 0.0f;
  }
  constexpr float kLargest = kIsFloat8 ? kLargestFloat8 : 127.0f;
  const float scale = block_max<kByteThreads>(top) / kLargest + block_sum<kByteThreads>(probe);
  const float inverse = scale > kLeastScale ? 1.0f / scale : 0.0f;
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
  auto* words = reinterpret_cast<uint32_t*>(codes + static_cast<size_t>(blockIdx.x) * padded_inputs);
  for (int w = threadIdx.x; w < padded_inputs / 4; w += kByteThreads) {
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float value = w * 4 + i < from.inputs ? input(w * 4 + i) * inverse : 0.0f;
      uint32_t code;
      if constexpr (kIsFloat8) {
        code = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
      } else {
        code = static_cast<uint8_t>(__float2int_rn(fminf(fmaxf(value, -kLargest), kLargest)));
      }
      word |= code << 8 * i;
    }
    words[w] = word;
  }
}

dim3 grid_of(const RowsToRound& from, int padded_inputs) {
  return rows_and(from.rows, divide_up(padded_inputs / kChunk * from.heads, kThreads));
}

template <WeightFormat kFormat, int kGroup>
void launch_normed(cudaStream_t stream, const NormWeight& norm, const RowsToRound& from, int padded_inputs,
                   uint16_t* rounded) {
  using Group = RowGroup<kGroup>;
  const bool is_vector = from.inputs % 4 == 0 && is_float4(from.x) && is_float4(norm.weight);
  launch(is_vector ? round_normed_kernel<kFormat, kGroup, float4> : round_normed_kernel<kFormat, kGroup, float>,
         dim3(divide_up(from.rows, Group::kRows)), dim3(Group::kBlock), 0, stream, norm, from, padded_inputs, rounded);
}

template <WeightFormat kFormat>
void launch_input(cudaStream_t stream, const LinearRows& input, RowsToRound from, int padded_inputs,
                  uint16_t* rounded) {
  if (input.gate.has_value()) {
    from.stride *= 2;
    from.type = input.type;
    launch(round_gated_kernel<kFormat>, grid_of(from, padded_inputs), dim3(kThreads), 0, stream, *input.gate, from,
           input.bias, padded_inputs, rounded);
  } else if (input.norm == nullptr) {
    launch(round_kernel<kFormat>, grid_of(from, padded_inputs), dim3(kThreads), 0, stream, from, padded_inputs,
           rounded);
  } else if (from.inputs <= kWarpFloats) {
    launch_normed<kFormat, kWarp>(stream, *input.norm, from, padded_inputs, rounded);
  } else {
    launch_normed<kFormat, kNormThreads>(stream, *input.norm, from, padded_inputs, rounded);
  }
}

void launch_rounding(cudaStream_t stream, const LinearRows& input, const RowsToRound& from, WeightFormat weight_format,
                     ChunkOrder order, int padded_inputs, uint16_t* rounded) {
  auto* launch_format = order == ChunkOrder::kInt4                 ? launch_input<WeightFormat::kInt4>
                        : weight_format == WeightFormat::kBFloat16 ? launch_input<WeightFormat::kBFloat16>
                                                                   : launch_input<WeightFormat::kFloat16>;
  launch_format(stream, input, from, padded_inputs, rounded);
}

}  // namespace

void round_rows(cudaStream_t stream, const RowsToRound& from, WeightFormat weight_format, ChunkOrder order,
                int padded_inputs, uint16_t* rounded) {
  launch_rounding(stream, static_cast<const float*>(nullptr), from, weight_format, order, padded_inputs, rounded);
}

void round_input(cudaStream_t stream, const LinearRows& input, int rows, const LinearWeight& weight, ChunkOrder order,
                 int padded_inputs, uint16_t* rounded) {
  launch_rounding(stream, input, rows_of(weight, input.x, rows), weight.format, order, padded_inputs, rounded);
}

void round_rows_to_bytes(cudaStream_t stream, const RowsToRound& from, WeightFormat weight_format, int padded_inputs,
                         uint8_t* codes, float* scales) {
  auto* kernel = weight_format == WeightFormat::kInt8 ? round_bytes_kernel<false> : round_bytes_kernel<true>;
  launch(kernel, dim3(from.rows), dim3(kByteThreads), 0, stream, from, padded_inputs, codes, scales);
}

void gather_inputs(cudaStream_t stream, const RowsToRound& from, int padded_inputs, float* gathered) {
  launch(gather_kernel, grid_of(from, padded_inputs), dim3(kThreads), 0, stream, from, padded_inputs, gathered);
}

}  // namespace turbomind::cuda
