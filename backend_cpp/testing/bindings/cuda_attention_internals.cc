#include <pybind11/stl.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cuda/attention/paged_attention.h"
#include "testing/bindings/cuda_internals.h"

namespace py = pybind11;

namespace turbomind::cuda {

namespace {

AttentionParams params_of(int bits, const CacheSizes& sizes) {
  AttentionParams params;
  params.layout = cache_layout(bits, sizes);
  params.num_heads = std::get<0>(sizes);
  return params;
}

// Seconds of one call, the median of `rounds`, and the bytes of the cache that it reads: so many sequences decode
// behind `context` tokens each, in blocks of their own.
std::pair<double, size_t> time_attention(Device& device, int bits, const CacheSizes& sizes, int sequences, int context,
                                         int rounds) {
  CudaOperators& ops = operators_of(device);
  AttentionParams params = params_of(bits, sizes);
  const CacheLayout& layout = params.layout;
  const int blocks_each = divide_up(context, layout.block_len);
  std::vector<DeviceSpan> spans;
  std::vector<int32_t> blocks(static_cast<size_t>(sequences) * blocks_each);
  std::iota(blocks.begin(), blocks.end(), 0);
  for (int s = 0; s < sequences; ++s) spans.push_back({s, 1, context - 1, s * blocks_each});
  const OnDevice<DeviceSpan> span_table(ops, spans.data(), spans.size());
  const OnDevice<int32_t> block_table(ops, blocks.data(), blocks.size());
  const DeviceSpans shape{span_table.data(), block_table.data(), sequences, 1, context};
  const auto zeros = [&](size_t bytes) {
    AlignedBuffer buffer = ops.allocate(bytes);
    ops.fill_zero(buffer.as<void>(), bytes);
    return buffer;
  };
  const AlignedBuffer pool = zeros(blocks.size() * layout.block_bytes());
  params.pool = pool.as<std::byte>();
  const auto rows = static_cast<size_t>(sequences) * params.num_heads;
  const AlignedBuffer queries = zeros(rows * layout.key_dim * sizeof(float));
  const AlignedBuffer out = ops.allocate(rows * layout.value_dim * sizeof(float));
  const AlignedBuffer workspace = ops.allocate(attention_workspace_floats(params, shape) * sizeof(float));
  const auto dim = static_cast<size_t>(layout.key_dim);
  const HeadsView view{queries.as<float>(), sequences, params.num_heads * dim, params.num_heads, dim, layout.key_dim};
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaEventCreateWithFlags(&begin, cudaEventDefault), "creating an event");
  check(cudaEventCreateWithFlags(&end, cudaEventDefault), "creating an event");
  std::vector<float> milliseconds;
  for (int round = 0; round < rounds; ++round) {
    check(cudaEventRecord(begin, ops.stream()), "timing attention");
    paged_attention(ops.stream(), params, shape, view, workspace.as<float>(), out.as<float>());
    check(cudaEventRecord(end, ops.stream()), "timing attention");
    check(cudaEventSynchronize(end), "running attention");
    check(cudaEventElapsedTime(&milliseconds.emplace_back(), begin, end), "timing attention");
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::nth_element(milliseconds.begin(), milliseconds.begin() + rounds / 2, milliseconds.end());
  const size_t bytes_of_token = layout.block_bytes() / static_cast<size_t>(layout.block_len);
  return {milliseconds[static_cast<size_t>(rounds / 2)] * 1e-3, rows / params.num_heads * context * bytes_of_token};
}

}  // namespace

void bind_attention_internals(DeviceClass& device) {
  // Floats of the workspace of a launch of that shape, and of any.
  device.def("attention_workspaces", [](Device&, int bits, const CacheSizes& sizes, int span_count, int max_rows,
                                        int max_context, int window) {
    AttentionParams params = params_of(bits, sizes);
    params.window = window;
    return std::pair(attention_workspace_floats(params, {nullptr, nullptr, span_count, max_rows, max_context}),
                     most_attention_workspace_floats(params));
  });
  device.def("time_attention", &time_attention);
}

}  // namespace turbomind::cuda
