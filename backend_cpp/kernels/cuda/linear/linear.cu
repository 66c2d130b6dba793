#include "kernels/cuda/linear/linear.h"

#include <algorithm>
#include <optional>

#include "base/kernel_choice.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/linear/gemms.h"
#include "kernels/cuda/linear/linear_task.cuh"
#include "kernels/cuda/linear/weight_slab.cuh"
#include "kernels/cuda/quantize/round_rows.h"

namespace turbomind::cuda {

namespace {

// How a call multiplies.
enum class Variant : uint8_t {
  kReference,    // float32 as it is
  kGemv,         // few rows, rounded while they are read
  kTile,         // some, rounded before
  kRing,         // both, on Hopper
  kLibrary,      // many rows of bytes, scales applied by the library
  kScaled,       // many rows, scales applied by us
  kLibraryGemm,  // other products of the library
};

// The most rows that kernels of ours multiply: of 16 bits none, since cuBLASLt took 0.65 to 0.28 of their time for 1 to
// 16 rows (H200). What LMDEPLOY_CUDA_KERNELS says of `linear` holds as far as there is a choice.
int native_rows(const LinearWeight& weight) {
  static const std::optional<KernelSource> requested = requested_kernels("turbomind", "linear");
  if (requested == KernelSource::kLibrary && weight.output_scales != nullptr) return kGemvRows;
  if (weight.is_packed() && requested != KernelSource::kLibrary) return kDequantizeRows - 1;
  return requested == KernelSource::kNative ? kGemvRows : 0;
}

Variant variant_of(const LinearWeight& weight, int rows, GemmScales scales) {
  const bool is_float32 = weight.format == WeightFormat::kFloat32;
  if (is_float32 ? rows <= kReferenceRows : !has_whole_chunks(weight)) return Variant::kReference;
  if (!is_float32 && rows <= native_rows(weight)) {
    const bool needs_rows = weight.format != WeightFormat::kInt4;
    if (weight.is_row_major == needs_rows && has_ring(weight)) return Variant::kRing;
    return rows <= kGemvRows ? Variant::kGemv : Variant::kTile;
  }
  if (scales != GemmScales::kNone) return Variant::kLibrary;
  return weight.output_scales != nullptr ? Variant::kScaled : Variant::kLibraryGemm;
}

LinearTask task_of(const LinearScratch& scratch, const LinearWeight& weight, const void* x, size_t x_stride, int rows,
                   float* y, bool accumulate) {
  LinearTask task;
  task.weight = weight;
  task.x = x;
  task.x_stride = x_stride;
  task.y = y;
  task.y_stride = static_cast<size_t>(weight.out_features);
  task.rows = rows;
  task.accumulates = accumulate;
  task.counters = scratch.counters;
  return task;
}

// y = bias, or y +=, so that a product can be added.
__global__ void add_bias_kernel(const float* bias, int outputs, float* y, bool accumulate) {
  await_previous();
  const int output = blockIdx.y * blockDim.x + threadIdx.x;
  if (output >= outputs) return;
  float* target = y + static_cast<size_t>(blockIdx.x) * outputs + output;
  *target = accumulate ? *target + bias[output] : bias[output];
}

void many_rows(cudaStream_t stream, const LinearScratch& scratch, const LinearWeight& weight, const LinearInput& input,
               int rows, const TypedRows& result, bool accumulate) {
  if (weight.bias != nullptr) {
    constexpr int kThreads = 256;
    launch(add_bias_kernel, rows_and(rows, divide_up(weight.out_features, kThreads)), dim3(kThreads), 0, stream,
           weight.bias, weight.out_features, result.floats(), accumulate);
    accumulate = true;
  }
  GemmCall call;
  call.x = input.x.data;
  call.w = weight.data;
  call.y = result.data;
  call.result = result.type;
  call.rows = rows;
  call.outputs = weight.out_features;
  call.inputs = padded_inputs(weight);
  call.y_stride = static_cast<size_t>(weight.out_features);
  call.alpha = range_of(weight.format) / (result.type == DType::kFloat16 ? kHalfRange : 1.0f);
  call.accumulates = accumulate;
  if (weight.format == WeightFormat::kFloat32) {
    call.inputs = weight.in_features;
    multiply(stream, *scratch.gemm, scratch.memory, call);
    return;
  }
  Scratch memory = scratch.memory;
  if (input.is_float32() || input.has_prologue() || weight.format != WeightFormat::kBFloat16) {
    auto* rounded = memory.take<uint16_t>(static_cast<size_t>(rows) * call.inputs);
    round_input(stream, input, rows, weight, ChunkOrder::kSequential, call.inputs, rounded);
    call.x = rounded;
  }
  call.type = weight.format == WeightFormat::kBFloat16 ? GemmType::kBFloat16 : GemmType::kFloat16;
  if (!weight.is_packed()) {
    multiply(stream, *scratch.gemm, memory, call);
    return;
  }
  const int step = piece_outputs(weight);
  auto* dequantized = memory.take<uint16_t>(static_cast<size_t>(step) * call.inputs);
  call.w = dequantized;
  for (int first = 0; first < weight.out_features; first += step) {
    call.outputs = std::min(step, weight.out_features - first);
    call.y = result.from(first).data;
    dequantize_weight(stream, weight, first, call.outputs, dequantized);
    multiply(stream, *scratch.gemm, memory, call);
  }
}

}  // namespace

SplitCounters::SplitCounters(cudaStream_t stream) : buffer_(allocate(kSplitCounters * sizeof(int32_t))) {
  check(cudaMemsetAsync(data(), 0, buffer_.size(), stream), "zeroing counters");
}

size_t linear_scratch_bytes(const LinearWeight& weight, int rows) {
  constexpr int kMinRows = 4;  // of float32 have the bytes of the least that ring_linear takes
  const size_t inputs = static_cast<size_t>(std::max(rows, kMinRows)) * padded_inputs(weight);
  size_t bytes = scratch_bytes<float>(inputs) + std::max(split_scratch_bytes(), kGemmScratchBytes);
  if (rows <= native_rows(weight)) return bytes;
  if (weight.output_scales != nullptr) return std::max(bytes, scaled_gemm_bytes(weight, rows));
  if (weight.is_packed()) {
    bytes += scratch_bytes<uint16_t>(static_cast<size_t>(piece_outputs(weight)) * padded_inputs(weight));
  }
  return bytes;
}

LinearTypes linear_types(const LinearWeight& weight, int rows, GemmScales scales) {
  LinearTypes types;
  switch (variant_of(weight, rows, scales)) {
    case Variant::kReference:
    case Variant::kGemv:
      break;
    case Variant::kTile:
    case Variant::kRing:
      types.makes_rows = true;
      break;
    case Variant::kLibrary:
    case Variant::kScaled:
      types = {DType::kBFloat16, DType::kBFloat16, can_round_to_bytes(gemm_inputs(weight))};
      break;
    case Variant::kLibraryGemm:
      if (weight.format == WeightFormat::kFloat32) break;
      types = {DType::kFloat32, DType::kFloat16, true};
      if (weight.format == WeightFormat::kBFloat16) {
        types.result = DType::kBFloat16;
        if (weight.in_features % kChunk == 0) types.rows = DType::kBFloat16;
      }
  }
  if (weight.bias != nullptr || weight.out_features % kChunk != 0) types.result = DType::kFloat32;
  return types;
}

void linear(cudaStream_t stream, const LinearScratch& scratch, const LinearWeight& weight, const LinearInput& input,
            int rows, const TypedRows& result, bool accumulate) {
  if (rows == 0) return;
  const int padded = padded_inputs(weight);
  Scratch memory = scratch.memory;
  switch (variant_of(weight, rows, scratch.scales)) {
    case Variant::kReference:
      return reference_linear(
          stream, task_of(scratch, weight, input.x.floats(), weight.in_features, rows, result.floats(), accumulate));
    case Variant::kGemv: {
      const float* x = nullptr;
      size_t stride = weight.in_features;
      if (weight.input_order != nullptr || weight.in_features % 4 != 0 || !input.is_float32()) {
        stride = padded;
        auto* gathered = memory.take<float>(rows * stride);
        gather_input(stream, input, rows, weight, padded, gathered);
        x = gathered;
      } else {
        x = input.x.floats();
      }
      return gemv(stream, memory, task_of(scratch, weight, x, stride, rows, result.floats(), accumulate), rows);
    }
    case Variant::kTile: {
      auto* rounded = memory.take<uint16_t>(static_cast<size_t>(rows) * padded);
      const ChunkOrder order = weight.format == WeightFormat::kInt4 ? ChunkOrder::kInt4 : ChunkOrder::kSequential;
      round_input(stream, input, rows, weight, order, padded, rounded);
      return tile_linear(stream, memory, task_of(scratch, weight, rounded, padded, rows, result.floats(), accumulate),
                         rows);
    }
    case Variant::kRing: {
      const int columns = ring_columns(weight, rows);
      auto* rounded = memory.take<uint16_t>(static_cast<size_t>(divide_up(rows, columns)) * columns * padded);
      round_for_ring(stream, input, rows, weight, columns, padded, rounded);
      return ring_linear(stream, memory, task_of(scratch, weight, rounded, padded, rows, result.floats(), accumulate),
                         columns);
    }
    case Variant::kLibrary: {
      const int last = result.type == DType::kFloat32 ? rows % kLibraryRows : 0;
      const int first = rows - last;
      library_gemm(stream, scratch, weight, scratch.scales, input, first, result, accumulate);
      return linear(stream, scratch, weight, input.from_row(first, weight.in_features), last,
                    result.from(static_cast<size_t>(first) * weight.out_features), accumulate);
    }
    case Variant::kScaled:
      return scaled_gemm(stream, scratch, weight, input, rows, result, accumulate);
    case Variant::kLibraryGemm:
      return many_rows(stream, scratch, weight, input, rows, result, accumulate);
  }
}

size_t head_linear_scratch_bytes(const HeadLinear& op) {
  const size_t inputs = static_cast<size_t>(op.x.rows) * op.x.heads * padded_inputs(op.weight);
  return scratch_bytes<uint16_t>(inputs) + split_scratch_bytes();
}

void head_linear(cudaStream_t stream, const LinearScratch& scratch, const HeadLinear& op) {
  const auto& [weight, x, y] = op;
  if (x.rows == 0) return;
  LinearTask task;
  task.weight = weight;
  task.weight.out_features = y.head_dim;
  task.x = x.first;
  task.x_stride = x.row_stride;
  task.x_head_stride = x.head_stride;
  task.y = y.first;
  task.y_stride = y.row_stride;
  task.y_head_stride = y.head_stride;
  task.rows = x.rows;
  task.heads = x.heads;
  task.weight_head_bytes = static_cast<size_t>(x.head_dim) * y.head_dim *
                           (weight.format == WeightFormat::kFloat32 ? sizeof(float) : sizeof(uint16_t));
  task.counters = scratch.counters;
  const bool is_aligned = x.row_stride % 4 == 0 && x.head_stride % 4 == 0;
  if (!has_whole_chunks(weight) || (x.rows <= kGemvRows && !is_aligned)) {
    reference_linear(stream, task);
  } else if (x.rows <= kGemvRows) {
    gemv(stream, scratch.memory, task, x.rows);
  } else {
    Scratch memory = scratch.memory;
    const auto inputs = static_cast<size_t>(x.head_dim);
    auto* rounded = memory.take<uint16_t>(inputs * x.heads * x.rows);
    round_rows(stream, {x.first, x.rows, x.row_stride, x.heads, x.head_stride, x.head_dim, nullptr}, weight.format,
               ChunkOrder::kSequential, x.head_dim, rounded);
    task.x = rounded;
    task.x_stride = inputs * x.heads;
    task.x_head_stride = inputs;
    tile_linear(stream, memory, task, x.rows);
  }
}

}  // namespace turbomind::cuda
