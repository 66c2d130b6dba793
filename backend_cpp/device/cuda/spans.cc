#include "device/cuda/spans.h"

#include <algorithm>
#include <bit>

#include "device/cuda/graphs.h"
#include "device/cuda/operators.h"

namespace turbomind {

void CudaSpans::reserve(CudaOperators& ops, int span_count, size_t block_count) {
  blocks_ = Staged(ops, block_count * sizeof(int32_t));
  const auto padded = static_cast<size_t>(CudaGraphs::padded_rows(span_count, true));
  for (Group* group : {&single_, &several_}) group->spans = Staged(ops, padded * sizeof(cuda::DeviceSpan));
}

void CudaSpans::set(CudaOperators& ops, const std::vector<AttentionSpan>& spans, int block_len, bool is_padded) {
  const auto blocks_of = [block_len](const AttentionSpan& span) {
    return static_cast<size_t>((span.first_position + span.count + block_len - 1) / block_len);
  };
  size_t block_count = 0;
  int max_kv_len = 0;
  int max_tokens = 0;
  for (const AttentionSpan& span : spans) {
    block_count += blocks_of(span);
    max_kv_len = std::max(max_kv_len, span.first_position + span.count);
    max_tokens = std::max(max_tokens, span.count);
  }
  if (blocks_.size() < block_count * sizeof(int32_t)) {
    ops.clear_graphs();  // they hold the old address
    blocks_ = Staged(ops, std::bit_ceil(block_count) * 2 * sizeof(int32_t));
  }
  single_.filled.clear();
  several_.filled.clear();
  int32_t next = 0;
  for (const AttentionSpan& span : spans) {
    Group& group = span.count == 1 ? single_ : several_;
    group.filled.push_back({span.first_token, span.count, span.first_position, next});
    std::copy_n(span.blocks, blocks_of(span), blocks_.host<int32_t>() + next);
    next += static_cast<int32_t>(blocks_of(span));
  }
  blocks_.upload(ops, block_count * sizeof(int32_t));
  const int context = CudaGraphs::context_bound(max_kv_len);
  const auto singles = static_cast<int>(single_.filled.size());
  const bool is_decoding = is_padded && several_.filled.empty();
  upload(ops, single_, CudaGraphs::padded_rows(singles, is_decoding), 1, context);
  upload(ops, several_, static_cast<int>(several_.filled.size()), max_tokens, context);
}

void CudaSpans::set_empty(CudaOperators& ops, const DecodingShape& shape) {
  single_.filled.clear();
  several_.filled.clear();
  upload(ops, single_, shape.rows, 1, shape.context);
  upload(ops, several_, 0, 0, shape.context);
}

std::vector<cuda::DeviceSpan> CudaSpans::filled() const {
  std::vector<cuda::DeviceSpan> all = single_.filled;
  all.insert(all.end(), several_.filled.begin(), several_.filled.end());
  return all;
}

void CudaSpans::upload(CudaOperators& ops, Group& group, int span_count, int max_tokens, int max_context) {
  const size_t bytes = static_cast<size_t>(span_count) * sizeof(cuda::DeviceSpan);
  if (group.spans.size() < bytes) {
    ops.clear_graphs();
    group.spans = Staged(ops, std::bit_ceil(bytes) * 2);
  }
  auto* first = group.spans.host<cuda::DeviceSpan>();
  auto* end_of_filled = std::copy(group.filled.begin(), group.filled.end(), first);
  std::fill(end_of_filled, first + span_count, cuda::DeviceSpan{});
  group.spans.upload(ops, bytes);
  group.view = {group.spans.device<cuda::DeviceSpan>(), blocks_.device<int32_t>(), span_count, max_tokens, max_context};
}

}  // namespace turbomind
