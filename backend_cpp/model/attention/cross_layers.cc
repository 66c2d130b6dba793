#include "model/attention/cross_layers.h"

#include <algorithm>
#include <utility>

namespace turbomind {

CrossLayers::CrossLayers(Operators& ops, const ModelSpec& spec, int max_rows, bool is_divided)
    : spec_(spec),
      max_rows_(max_rows),
      is_divided_(is_divided),
      picture_rows_(ops, static_cast<size_t>(max_rows) * static_cast<size_t>(spec.hidden_size) * sizeof(float)),
      looking_rows_(ops, static_cast<size_t>(max_rows) * sizeof(int32_t)),
      sights_(ops, static_cast<size_t>(max_rows) * sizeof(int32_t)),
      factors_(ops, static_cast<size_t>(max_rows) * sizeof(float)),
      key_values_(float_buffer(ops, max_rows, 2 * spec.num_kv_heads * spec.head_dim)),
      x_(float_buffer(ops, max_rows, spec.hidden_size)),
      normed_(float_buffer(ops, max_rows, spec.hidden_size)),
      branch_(float_buffer(ops, max_rows, spec.hidden_size)),
      queries_(float_buffer(ops, max_rows, spec.num_heads * spec.head_dim)),
      attended_(float_buffer(ops, max_rows, spec.num_heads * spec.head_dim)) {
  std::fill_n(factors_.host<float>(), max_rows, spec.attention.scale);
  factors_.upload(ops, static_cast<size_t>(max_rows) * sizeof(float));
}

// As many rows as fit, where a block keeps its size to the byte and its length divides a partition.
CacheLayout CrossLayers::layout(const CacheLayout& of_tokens) const {
  CacheLayout layout = of_tokens;
  const int least_layers = static_cast<int>(spec_.pictures->cross_layers.size());
  while (layout.num_layers % 2 == 0 && layout.num_layers / 2 >= least_layers &&
         layout.block_len * 2 <= kPartitionTokens) {
    layout.num_layers /= 2;
    layout.block_len *= 2;
  }
  return layout;
}

int CrossLayers::rows_of_block(const CacheLayout& of_tokens) const {
  return layout(of_tokens).block_len;
}

void CrossLayers::use_cache(const CacheLayout& of_tokens, std::byte* pool) {
  params_ = {};
  params_.layout = layout(of_tokens);
  params_.pool = pool;
  params_.num_heads = spec_.num_heads;
}

// `count` heads of a buffer's rows of so many floats, from number `first` on.
HeadsView CrossLayers::heads(const AlignedBuffer& buffer, int rows, int count, int width, int first) const {
  const auto head_dim = static_cast<size_t>(spec_.head_dim);
  return {buffer.as<float>() + first, rows, static_cast<size_t>(width), count, head_dim, spec_.head_dim};
}

void CrossLayers::fill(Operators& ops, const StepInput& input, const std::vector<CrossLayerWeights>& layers) {
  if (input.fills.empty()) return;
  std::vector<AttentionSpan> spans;
  int rows = 0;
  auto* to = picture_rows_.host<float>();
  for (const PictureFill& fill : input.fills) {
    if (rows + fill.count > max_rows_) throw internal_error("a step fills more rows of pictures than it may have");
    spans.push_back({rows, fill.count, fill.first, fill.blocks->data()});
    for (int row = 0; row < fill.count; ++row, to += spec_.hidden_size) fill.group->read(fill.first + row, to);
    rows += fill.count;
  }
  picture_rows_.upload(ops, static_cast<size_t>(rows) * static_cast<size_t>(spec_.hidden_size) * sizeof(float));
  ops.set_spans(SpanSet::kFills, std::move(spans), params_.layout.block_len);

  AttentionParams params = params_;
  params.set = SpanSet::kFills;
  const int width = spec_.num_kv_heads * spec_.head_dim;
  const HeadsView keys = heads(key_values_, rows, spec_.num_kv_heads, 2 * width, 0);
  const HeadsView values = heads(key_values_, rows, spec_.num_kv_heads, 2 * width, width);
  for (size_t index = 0; index < layers.size(); ++index) {
    ops.linear(layers[index].kv.view, picture_rows_.device<float>(), rows, key_values_.as<float>(), false);
    ops.norm_heads(layers[index].k_norm.view, keys);
    params.layer = static_cast<int>(index);
    ops.write_cache(params, keys, values);
  }
}

bool CrossLayers::begin_step(Operators& ops, const StepInput& input) {
  looking_ = 0;
  if (input.looks.empty()) return false;
  std::vector<AttentionSpan> spans;
  auto* rows = looking_rows_.host<int32_t>();
  for (const PictureLook& look : input.looks) {
    // A span's rows are the last ones of what they all see, so none has more rows than that.
    for (int done = 0; done < look.count;) {
      const int count = std::min(look.count - done, look.seen);
      spans.push_back({looking_, count, look.seen - count, look.blocks->data()});
      for (int row = 0; row < count; ++row) rows[looking_ + row] = look.first_row + done + row;
      std::fill_n(sights_.host<int32_t>() + looking_, count, look.seen);
      looking_ += count;
      done += count;
    }
  }
  looking_rows_.upload(ops, static_cast<size_t>(looking_) * sizeof(int32_t));
  sights_.upload(ops, static_cast<size_t>(looking_) * sizeof(int32_t));
  ops.set_spans(SpanSet::kLooks, std::move(spans), params_.layout.block_len);
  params_.set = SpanSet::kLooks;
  params_.sights = sights_.device<int32_t>();
  return true;
}

void CrossLayers::run(Operators& ops, int index, const CrossLayerWeights& layer, DenseMlp& mlp, float* hidden) {
  auto* x = x_.as<float>();
  auto* normed = normed_.as<float>();
  auto* branch = branch_.as<float>();
  const int size = spec_.hidden_size;
  ops.gather_rows(hidden, looking_rows_.device<int32_t>(), looking_, size, x);

  ops.norm(layer.attention_norm.view, x, looking_, size, normed);
  ops.linear(layer.q.view, normed, looking_, queries_.as<float>(), false);
  const HeadsView queries = heads(queries_, looking_, spec_.num_heads, spec_.num_heads * spec_.head_dim, 0);
  ops.norm_heads(layer.q_norm.view, queries);
  ops.rope({}, queries, factors_.device<float>());
  params_.layer = index;
  ops.paged_attention(params_, queries, attended_.as<float>());
  ops.linear(layer.o.view, attended_.as<float>(), looking_, branch, false);
  add_gated(ops, layer.attention_gate);

  ops.norm(layer.mlp_norm.view, x, looking_, size, normed);
  mlp.run(StepContext{ops, looking_}, layer.mlp, normed, branch, false);
  add_gated(ops, layer.mlp_gate);
  ops.scatter_rows(x, looking_rows_.device<int32_t>(), looking_, size, hidden, false);
}

void CrossLayers::add_gated(Operators& ops, float gate) {
  auto* branch = branch_.as<float>();
  if (is_divided_) ops.all_reduce(branch, static_cast<size_t>(looking_) * static_cast<size_t>(spec_.hidden_size));
  ops.add_scaled(gate, branch, looking_, spec_.hidden_size, x_.as<float>());
}

}  // namespace turbomind
