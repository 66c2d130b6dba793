#include "kernels/cuda/prefill/prefill.h"

#include <algorithm>

#include "kernels/cuda/elementwise/elementwise.h"

namespace turbomind::cuda {

namespace {

struct Rows {
  int first;
  int count;
};

// The spans' rows, those that follow each other as one.
std::vector<Rows> runs_of(const std::vector<DeviceSpan>& spans) {
  std::vector<Rows> runs;
  for (const DeviceSpan& span : spans) runs.push_back({span.first_token, span.count});
  std::sort(runs.begin(), runs.end(), [](const Rows& a, const Rows& b) { return a.first < b.first; });
  size_t last = 0;
  for (size_t i = 1; i < runs.size(); ++i) {
    if (runs[i].first == runs[last].first + runs[last].count) {
      runs[last].count += runs[i].count;
    } else {
      runs[++last] = runs[i];
    }
  }
  runs.resize(std::min(runs.size(), last + 1));
  return runs;
}

size_t row_width(const AttentionParams& params) {
  return static_cast<size_t>(params.num_heads) * params.layout.key_dim;
}

}  // namespace

bool is_prefill_attention(const AttentionParams& params, int max_keys) {
  const CacheLayout& layout = params.layout;
  return layout.type == CacheType::kBFloat16 && layout.key_dim == layout.value_dim &&
         params.set.use == SpanUse::kTokens && params.softcap == 0 && params.alibi_slopes == nullptr &&
         params.distance_biases == nullptr && params.kv_lens == nullptr && params.sinks == nullptr &&
         (params.window <= 0 || max_keys <= params.window);
}

size_t prefill_scratch_bytes(const AttentionParams& params, int rows) {
  return scratch_bytes<uint16_t>(rows * row_width(params));
}

void prefill_attention(cudaStream_t stream, Scratch memory, const PrefillKernel& kernel, const PrefillPlan& plan,
                       const int32_t* on_device, const AttentionParams& params, const int32_t* blocks,
                       const HeadsView& q, const TypedRows& out) {
  const CacheLayout& layout = params.layout;
  const size_t width = row_width(params);
  PrefillCall call;
  call.queries = reinterpret_cast<const uint16_t*>(q.first);
  call.query_row_stride = 2 * q.row_stride;
  call.query_head_stride = 2 * q.head_stride;
  const bool is_narrow = out.type == DType::kBFloat16;
  call.out = is_narrow ? static_cast<uint16_t*>(out.data) : memory.take<uint16_t>(q.rows * width);
  call.rows = q.rows;
  call.heads = params.num_heads;
  call.kv_heads = layout.num_kv_heads;
  call.keys = reinterpret_cast<const uint16_t*>(params.pool + layout.key_offset(params.layer, 0));
  call.values = reinterpret_cast<const uint16_t*>(params.pool + layout.value_offset(params.layer, 0));
  call.block_stride = layout.block_bytes() / sizeof(uint16_t);
  call.block_len = layout.block_len;
  call.blocks = blocks;
  call.plan = view_prefill_plan(plan, on_device);
  kernel.run(stream, call);
  if (is_narrow) return;
  for (const auto& [first, count] : runs_of(plan.spans)) {
    upcast_rows(stream, call.out + first * width, count, static_cast<int>(width), nullptr,
                static_cast<float*>(out.data) + first * width);
  }
}

}  // namespace turbomind::cuda
