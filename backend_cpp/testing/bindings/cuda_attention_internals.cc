#include <algorithm>
#include <numeric>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cuda/attention/decode_plan.h"
#include "kernels/cuda/attention/paged_attention.h"
#include "kernels/cuda/linear/linear.h"
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

// Bytes of which every 16 bits are a finite number of each 16-bit type, and bytes are any codes.
void fill_random(CudaOperators& ops, const AlignedBuffer& buffer) {
  std::minstd_rand generator(1);
  std::vector<uint16_t> block(1 << 20);
  for (uint16_t& word : block) word = static_cast<uint16_t>(generator() >> 8) & 0xBFFF;
  const size_t block_bytes = block.size() * sizeof(uint16_t);
  for (size_t done = 0; done < buffer.size(); done += block_bytes) {
    ops.upload(block.data(), std::min(block_bytes, buffer.size() - done), buffer.as<std::byte>() + done);
  }
}

// Seconds of one call, and the bytes of the cache that it reads: this many sequences decode after `context` random
// tokens each, whose blocks are scattered.
std::pair<double, size_t> time_attention(TestDevice& device, int bits, const CacheSizes& sizes, int sequences,
                                         int context, int calls, int rounds) {
  CudaOperators& ops = operators_of(device);
  AttentionParams params = params_of(bits, sizes);
  const CacheLayout& layout = params.layout;
  const int blocks_each = divide_up(context, layout.block_len);
  std::vector<DeviceSpan> spans;
  std::vector<int32_t> blocks(static_cast<size_t>(sequences) * blocks_each);
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), std::minstd_rand(1));
  for (int s = 0; s < sequences; ++s) spans.push_back({s, 1, context - 1, s * blocks_each});
  const OnDevice<DeviceSpan> span_table(ops, spans.data(), spans.size());
  const Ints block_table(ops, blocks.data(), blocks.size());
  const DeviceSpans shape{span_table.data(), block_table.data(), sequences, 1, context};
  const AlignedBuffer pool = ops.allocate(blocks.size() * layout.block_bytes());
  fill_random(ops, pool);
  params.pool = pool.as<std::byte>();
  const auto rows = static_cast<size_t>(sequences) * params.num_heads;
  const AlignedBuffer queries = ops.allocate(rows * layout.key_dim * sizeof(float));
  fill_random(ops, queries);
  const AlignedBuffer out = ops.allocate(rows * layout.value_dim * sizeof(float));
  const AlignedBuffer workspace = ops.allocate(attention_workspace_floats(params, shape) * sizeof(float));
  const auto dim = static_cast<size_t>(layout.key_dim);
  const SplitCounters counters(ops.stream());
  const HeadsView view{queries.as<float>(), sequences, params.num_heads * dim, params.num_heads, dim, layout.key_dim};
  const double seconds = graph_seconds(ops, calls, rounds, [&](int) {
    paged_attention(ops.stream(), params, shape, view, workspace.as<float>(), out.as<float>(), counters.data());
  });
  const size_t bytes_of_token = layout.block_bytes() / static_cast<size_t>(layout.block_len);
  return {seconds, static_cast<size_t>(sequences) * context * bytes_of_token};
}

}  // namespace

void bind_attention_internals(DeviceClass& device) {
  // Floats of the workspace of a launch of that shape, and of any.
  device.def("attention_workspaces", [](TestDevice&, int bits, const CacheSizes& sizes, int span_count, int max_tokens,
                                        int max_context, int window) {
    AttentionParams params = params_of(bits, sizes);
    params.window = window;
    return std::pair(attention_workspace_floats(params, {nullptr, nullptr, span_count, max_tokens, max_context}),
                     max_attention_workspace_floats(params));
  });
  // Warps of a block, and splits, of a decoding launch on this device.
  device.def("decode_cut", [](TestDevice&, int bits, const CacheSizes& sizes, int rows, int contexts, int seen) {
    const DecodeCut cut = decode_cut(params_of(bits, sizes), rows, contexts, seen);
    return std::pair(cut.warps, cut.splits);
  });
  device.def("time_attention", &time_attention);
}

}  // namespace turbomind::cuda
