#include "model/encoder/text_memory.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace turbomind {

namespace {

constexpr int kBlockLen = 64;

int blocks_of(int tokens) {
  return (tokens + kBlockLen - 1) / kBlockLen;
}

}  // namespace

TextMemory::TextMemory(Operators& ops, const ModelSpec& spec, const CacheLayout& shape, int max_rows)
    : layout_(shape), max_rows_(max_rows) {
  layout_.num_layers = 1;
  layout_.block_len = kBlockLen;
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    kv_lens_.try_emplace(window_of(spec, layer), ops, static_cast<size_t>(max_rows) * sizeof(int32_t));
  }
}

void TextMemory::allocate(Operators& ops, int max_texts) {
  // Each text may leave most of its last block empty.
  const int blocks = max_rows_ / kBlockLen + std::min(max_texts, max_rows_);
  blocks_.resize(static_cast<size_t>(blocks));
  std::iota(blocks_.begin(), blocks_.end(), 0);
  pages_ = ops.allocate(layout_.block_bytes() * blocks_.size());
}

void TextMemory::begin_step(Operators& ops, const StepInput& input) {
  std::vector<AttentionSpan> spans;
  spans.reserve(input.spans.size());
  int block = 0;
  for (const StepSpan& span : input.spans) {
    spans.push_back({span.first_row, span.count, 0, blocks_.data() + block});
    block += blocks_of(span.count);
  }
  ops.set_spans({SpanUse::kTokens, 0}, std::move(spans), kBlockLen);
  for (auto& [window, kv_lens] : kv_lens_) {
    auto* len = kv_lens.host<int32_t>();
    for (const StepSpan& span : input.spans) {
      for (int row = 0; row < span.count; ++row) {
        len[span.first_row + row] = window > 0 ? std::min(span.count, row + window) : span.count;
      }
    }
    kv_lens.upload(ops, input.tokens.size() * sizeof(int32_t));
  }
}

void TextMemory::fill(int window, AttentionParams& params) const {
  params.layout = layout_;
  params.pool = pages_.as<std::byte>();
  params.layer = 0;
  params.set.table = 0;
  params.kv_lens = kv_lens_.at(window).device<int32_t>();
}

}  // namespace turbomind
