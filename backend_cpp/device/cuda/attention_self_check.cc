#include "device/cuda/attention_self_check.h"

#include <algorithm>
#include <cmath>

#include "device/cuda/operators.h"

namespace turbomind {

AttentionSelfCheck::AttentionSelfCheck(CudaOperators& ops, const AttentionParams& like,
                                       const std::vector<std::pair<int, int>>& sequences, int value_in_key)
    : ops_(ops), params_(like), value_in_key_(value_in_key) {
  params_.layout.num_layers = 1;
  params_.layer = 0;
  params_.window = 0;
  const CacheLayout& layout = params_.layout;
  std::vector<int32_t> blocks;
  for (const auto& [rows, keys] : sequences) {
    spans_.push_back({rows_, rows, keys - rows, static_cast<int32_t>(blocks.size())});
    rows_ += rows;
    max_tokens_ = std::max(max_tokens_, rows);
    max_keys_ = std::max(max_keys_, keys);
    for (int i = 0; i < cuda::divide_up(keys, layout.block_len); ++i) {
      blocks.push_back(static_cast<int32_t>(blocks.size()));
    }
  }
  // A block's neighbours belong to others.
  for (size_t i = 0; i + 1 < blocks.size(); i += 2) std::swap(blocks[i], blocks[blocks.size() - 1 - i]);
  const size_t heads = blocks.size() * layout.block_len * layout.num_kv_heads;
  keys_ = self_check_numbers(heads * layout.key_dim, 1.0f, 1);
  if (value_in_key < 0) values_ = self_check_numbers(heads * layout.value_dim, 1.0f, 3);
  block_ids_ = std::move(blocks);
  blocks_ = on_device(ops, block_ids_);
  spans_on_device_ = on_device(ops, spans_);
  // Scores of deviation 3: a few keys matter, whichever they are.
  const float deviation = 3.0f / std::sqrt(static_cast<float>(layout.key_dim));
  q_ = self_check_numbers(static_cast<size_t>(rows_) * params_.num_heads * layout.key_dim, deviation, 2);
  out_ = cuda::allocate(static_cast<size_t>(rows_) * params_.num_heads * layout.value_dim * sizeof(float));
}

SelfCheck AttentionSelfCheck::run(const std::function<std::vector<float>()>& candidate) {
  SelfCheck check;
  fill_cache(false);
  check.candidate = candidate();
  check.native = native();
  fill_cache(true);
  check.magnitude = native();
  // Weights, parts and results of theirs in bfloat16, and weights of ours: 2^-8 each.
  check.relative = 0x1p-6f;
  check.absolute = 1e-4f;
  return check;
}

cuda::DeviceSpans AttentionSelfCheck::device_spans() const {
  return {spans_on_device_.as<cuda::DeviceSpan>(), blocks(), static_cast<int>(spans_.size()), max_tokens_, max_keys_};
}

HeadsView AttentionSelfCheck::queries() {
  const auto dim = static_cast<size_t>(params_.layout.key_dim);
  q_on_device_ = on_device(ops_, q_);
  return {q_on_device_.as<float>(), rows_, params_.num_heads * dim, params_.num_heads, dim, params_.layout.key_dim};
}

void AttentionSelfCheck::fill_cache(bool has_absolute_values) {
  const CacheLayout& layout = params_.layout;
  const auto key_dim = static_cast<size_t>(layout.key_dim);
  const auto value_dim = static_cast<size_t>(layout.value_dim);
  const size_t block_size = layout.block_bytes() / sizeof(uint16_t);
  std::vector<uint16_t> pool(block_ids_.size() * block_size, 0x7FC0);
  const auto fill_slot = [&](size_t block, size_t slot, int head) {
    const size_t index = (block * layout.block_len + slot) * layout.num_kv_heads + head;
    uint16_t* first = pool.data() + block * block_size;
    uint16_t* key = first + layout.key_offset(0, head) / sizeof(uint16_t) + slot * key_dim;
    uint16_t* value = first + layout.value_offset(0, head) / sizeof(uint16_t) + slot * value_dim;
    const float* keys = keys_.data() + index * key_dim;
    const float* values = value_in_key_ < 0 ? values_.data() + index * value_dim : keys + value_in_key_;
    for (size_t d = 0; d < key_dim; ++d) key[d] = to_bf16(keys[d]).bits;
    for (size_t d = 0; d < value_dim; ++d) {
      value[d] = to_bf16(has_absolute_values ? std::abs(values[d]) : values[d]).bits;
    }
  };
  for (const cuda::DeviceSpan& span : spans_) {
    for (int p = 0; p < span.first_position + span.count; ++p) {
      const int32_t block = block_ids_[static_cast<size_t>(span.first_block + p / layout.block_len)];
      for (int head = 0; head < layout.num_kv_heads; ++head) {
        fill_slot(static_cast<size_t>(block), static_cast<size_t>(p % layout.block_len), head);
      }
    }
  }
  pool_ = on_device(ops_, pool);
  params_.pool = pool_.as<std::byte>();
}

std::vector<float> AttentionSelfCheck::fetch() {
  std::vector<float> out(out_.size() / sizeof(float));
  ops_.download(out_.as<void>(), out_.size(), out.data());
  return out;
}

std::vector<float> AttentionSelfCheck::native() {
  const cuda::DeviceSpans spans = device_spans();
  const AlignedBuffer workspace = cuda::allocate(cuda::attention_workspace_floats(params_, spans) * sizeof(float));
  cuda::paged_attention(ops_.stream(), params_, spans, queries(), workspace.as<float>(), out());
  return fetch();
}

}  // namespace turbomind
