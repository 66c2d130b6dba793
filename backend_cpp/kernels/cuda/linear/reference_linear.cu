#include "kernels/cuda/linear/linear_task.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/upcast.cuh"

// Float32 arithmetic, for float32 weights and for those of 16 bits that are not made of whole chunks. A warp has one
// output and a part's rows; blockIdx.x is the part. x comes out of the caches.

namespace turbomind::cuda {

namespace {

constexpr int kWarps = 8;

template <class Weight, int kRows, int kWidth>
__global__ void __launch_bounds__(kWarps* kWarp) reference_linear_kernel(LinearTask task) {
  await_previous();
  const LinearPart part = part_of<kRows, float>(task, blockIdx.x);
  const int output = blockIdx.y * kWarps + threadIdx.x / kWarp;
  if (part.rows == 0 || output >= part.weight.out_features) return;
  const int inputs = part.weight.in_features;
  const auto* w = static_cast<const Weight*>(part.weight.data) + static_cast<size_t>(output) * inputs;
  const float* x[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) x[r] = part.x_row<float>(r < part.rows ? r : 0);

  float sums[kRows] = {};
#pragma unroll 4
  for (int i = threadIdx.x % kWarp * kWidth; i < inputs; i += kWarp * kWidth) {
    if constexpr (kWidth == 4) {
      const float4 weight_values = __ldcs(reinterpret_cast<const float4*>(w + i));
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float4 v = *reinterpret_cast<const float4*>(x[r] + i);
        sums[r] = fmaf(weight_values.x, v.x,
                       fmaf(weight_values.y, v.y, fmaf(weight_values.z, v.z, fmaf(weight_values.w, v.w, sums[r]))));
      }
    } else {
      const float weight_value = upcast(w[i]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) sums[r] = fmaf(weight_value, x[r][i], sums[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float sum = warp_sum(sums[r]);
    if (threadIdx.x % kWarp != 0 || r >= part.rows) continue;
    float* y = part.y + r * part.y_stride + output;
    const float value = part.weight.bias != nullptr ? sum + part.weight.bias[output] : sum;
    *y = task.accumulates ? *y + value : value;
  }
}

template <class Weight, int kRows, int kWidth>
void launch_rows(cudaStream_t stream, const LinearTask& task, int parts) {
  launch(reference_linear_kernel<Weight, kRows, kWidth>, rows_and(parts, divide_up(task.weight.out_features, kWarps)),
         dim3(kWarps * kWarp), 0, stream, task);
}

bool is_aligned(const LinearTask& task) {
  const auto of_four = [](size_t size) { return size % 4 == 0; };
  return of_four(task.weight.in_features) && of_four(task.x_stride) && of_four(task.x_head_stride) &&
         reinterpret_cast<uintptr_t>(task.weight.data) % 16 == 0 && reinterpret_cast<uintptr_t>(task.x) % 16 == 0;
}

}  // namespace

void reference_linear(cudaStream_t stream, const LinearTask& task, int expert_parts) {
  const int parts = part_limit<kReferenceRows>(task, expert_parts);
  const bool is_one_row = task.rows == 1 && task.expert_weights == nullptr;
  if (task.weight.is_packed()) throw internal_error("reference_linear has no kernel for packed weights");
  const auto launch_format = task.weight.format == WeightFormat::kBFloat16  ? launch_rows<bf16, kReferenceRows, 1>
                             : task.weight.format == WeightFormat::kFloat16 ? launch_rows<half, kReferenceRows, 1>
                             : !is_aligned(task)                            ? launch_rows<float, kReferenceRows, 1>
                             : is_one_row                                   ? launch_rows<float, 1, 4>
                                                                            : launch_rows<float, kReferenceRows, 4>;
  launch_format(stream, task, parts);
}

}  // namespace turbomind::cuda
