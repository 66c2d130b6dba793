#include "model/text_encoder.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

namespace turbomind {

namespace {

constexpr int kBlockLen = 64;

int blocks_of(int tokens) {
  return (tokens + kBlockLen - 1) / kBlockLen;
}

// Divides the sum of the rows, or of their multiples.
float divisor_of(TextPooling pooling, int count) {
  const auto number = static_cast<float>(count);
  if (pooling == TextPooling::kMeanSqrt) return std::sqrt(number);
  return pooling == TextPooling::kWeightedMean ? number * (number + 1) / 2 : number;
}

}  // namespace

TextMemory::TextMemory(Operators& ops, const ModelSpec& spec, const CacheLayout& shape, int max_tokens)
    : layout_(shape), max_tokens_(max_tokens) {
  layout_.num_layers = 1;
  layout_.block_len = kBlockLen;
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    kv_lens_.try_emplace(window_of(spec, layer), ops, static_cast<size_t>(max_tokens) * sizeof(int32_t));
  }
}

void TextMemory::allocate(Operators& ops, int max_texts) {
  // Each text may leave most of its last block empty.
  const int blocks = max_tokens_ / kBlockLen + std::min(max_texts, max_tokens_);
  blocks_.resize(static_cast<size_t>(blocks));
  std::iota(blocks_.begin(), blocks_.end(), 0);
  pages_ = ops.allocate(layout_.block_bytes() * blocks_.size());
}

void TextMemory::begin_step(Operators& ops, const StepInput& input) {
  std::vector<AttentionSpan> spans;
  spans.reserve(input.spans.size());
  int block = 0;
  for (const StepSpan& span : input.spans) {
    spans.push_back({span.first_token, span.count, 0, blocks_.data() + block});
    block += blocks_of(span.count);
  }
  ops.set_spans({SpanUse::kTokens, 0}, std::move(spans), kBlockLen);
  for (auto& [window, kv_lens] : kv_lens_) {
    auto* len = kv_lens.host<int32_t>();
    for (const StepSpan& span : input.spans) {
      for (int row = 0; row < span.count; ++row) {
        len[span.first_token + row] = window > 0 ? std::min(span.count, row + window) : span.count;
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

void pool_text(TextPooling pooling, const float* rows, int count, int size, float* vector) {
  const auto width = static_cast<size_t>(size);
  const float* last = rows + static_cast<size_t>(count - 1) * width;
  if (takes_one(pooling)) {
    std::copy_n(pooling == TextPooling::kFirst ? rows : last, width, vector);
    return;
  }
  std::copy_n(rows, width, vector);
  for (int row = 1; row < count; ++row) {
    const float* x = rows + static_cast<size_t>(row) * width;
    const float weight = pooling == TextPooling::kWeightedMean ? static_cast<float>(row + 1) : 1.0f;
    if (pooling == TextPooling::kMax) {
      for (size_t i = 0; i < width; ++i) vector[i] = std::max(vector[i], x[i]);
    } else {
      for (size_t i = 0; i < width; ++i) vector[i] += weight * x[i];
    }
  }
  if (pooling == TextPooling::kMax) return;
  const float factor = 1 / divisor_of(pooling, count);
  for (size_t i = 0; i < width; ++i) vector[i] *= factor;
}

}  // namespace turbomind
