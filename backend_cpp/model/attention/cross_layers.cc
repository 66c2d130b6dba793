#include "model/attention/cross_layers.h"

#include <algorithm>
#include <utility>

#include "model/step/image_tokens.h"

namespace turbomind {

CrossLayers::CrossLayers(Operators& ops, const ModelSpec& spec, CacheType cache_type, int max_tokens, bool is_divided)
    : spec_(spec),
      max_tokens_(max_tokens),
      is_divided_(is_divided),
      shape_{cache_type, 1, spec.num_kv_heads, spec.head_dim, spec.head_dim, 0},
      image_tokens_(ops, static_cast<size_t>(max_tokens) * static_cast<size_t>(spec.hidden_size) * sizeof(float)),
      span_tokens_(ops, static_cast<size_t>(max_tokens) * sizeof(int32_t)),
      kv_lens_(ops, static_cast<size_t>(max_tokens) * sizeof(int32_t)),
      key_values_(ops, max_tokens, 2 * spec.num_kv_heads * spec.head_dim),
      x_(ops, max_tokens, spec.hidden_size),
      normed_(ops, max_tokens, spec.hidden_size),
      branch_(ops, max_tokens, spec.hidden_size),
      queries_(ops, max_tokens, spec.num_heads * spec.head_dim),
      attention_output_(ops, max_tokens, spec.num_heads * spec.head_dim) {}

std::vector<CacheGroup> CrossLayers::cache_groups(const StepLimits& limits) const {
  return {{.kind = MemoryKind::kCross,
           .block_len = limits.block_len,
           .pieces = cross_layer_count(spec_),
           .piece_bytes = with_layout(shape_, limits.block_len).layer_bytes(),
           .layers = {}}};
}

size_t CrossLayers::use_cache(Operators&, const CachePlan& plan, size_t first_group, std::byte* pages) {
  const CacheGroup& group = plan.groups.at(first_group);
  params_ = {};
  params_.layout = with_layout(shape_, group.block_len, group.page_pieces, plan.page_bytes);
  params_.num_heads = spec_.num_heads;
  params_.pool = pages;
  table_count_ = group.pages;
  return 1;
}

void CrossLayers::set_spans(Operators& ops, SpanUse use, const std::vector<AttentionSpan>& spans,
                            const std::vector<const PageTables*>& tables) const {
  for (int table = 0; table < table_count_; ++table) {
    std::vector<AttentionSpan> table_spans = spans;
    for (size_t i = 0; i < table_spans.size(); ++i)
      table_spans[i].blocks = (*tables[i])[static_cast<size_t>(table)].data();
    ops.set_spans({use, table}, std::move(table_spans), params_.layout.block_len);
  }
}

void CrossLayers::choose_layer(AttentionParams& params, int index) const {
  params.set.table = index / params.layout.num_layers;
  params.layer = index % params.layout.num_layers;
}

// `count` heads of a buffer's rows of this many floats, from number `first` on.
HeadsView CrossLayers::heads(const AlignedBuffer& buffer, int rows, int count, int width, int first) const {
  const auto head_dim = static_cast<size_t>(spec_.head_dim);
  return {buffer.as<float>() + first, rows, static_cast<size_t>(width), count, head_dim, spec_.head_dim};
}

void CrossLayers::write(Operators& ops, const StepInput& input, const std::vector<CrossLayerWeights>& layers) {
  if (input.kv_writes.empty()) return;
  std::vector<AttentionSpan> spans;
  std::vector<const PageTables*> tables;
  int rows = 0;
  auto* to = image_tokens_.host<float>();
  for (const EncoderKvWrite& write : input.kv_writes) {
    if (rows + write.count > max_tokens_) throw internal_error("a step fills more rows of images than it may have");
    spans.push_back({rows, write.count, write.first});
    tables.push_back(write.tables);
    for (int row = 0; row < write.count; ++row, to += spec_.hidden_size) write.group->read(write.first + row, to);
    rows += write.count;
  }
  image_tokens_.upload(ops, static_cast<size_t>(rows) * static_cast<size_t>(spec_.hidden_size) * sizeof(float));
  set_spans(ops, SpanUse::kCrossKvWrite, spans, tables);

  AttentionParams params = params_;
  params.set.use = SpanUse::kCrossKvWrite;
  const int width = spec_.num_kv_heads * spec_.head_dim;
  const HeadsView keys = heads(key_values_, rows, spec_.num_kv_heads, 2 * width, 0);
  const HeadsView values = heads(key_values_, rows, spec_.num_kv_heads, 2 * width, width);
  for (size_t index = 0; index < layers.size(); ++index) {
    ops.linear(layers[index].kv.view, image_tokens_.device<float>(), rows, key_values_, false);
    ops.norm_heads(layers[index].k_norm.view, keys);
    choose_layer(params, static_cast<int>(index));
    ops.write_cache(params, keys, values);
  }
}

void CrossLayers::begin_step(Operators& ops, const StepInput& input) {
  row_count_ = 0;
  if (input.cross_spans.empty()) return;
  std::vector<AttentionSpan> spans;
  std::vector<const PageTables*> tables;
  auto* rows = span_tokens_.host<int32_t>();
  for (const CrossAttentionSpan& span : split_cross_spans(input.cross_spans)) {
    spans.push_back({row_count_, span.count, span.seen - span.count});  // the last rows of what they all see
    tables.push_back(span.tables);
    for (int row = 0; row < span.count; ++row) rows[row_count_ + row] = span.first_token + row;
    std::fill_n(kv_lens_.host<int32_t>() + row_count_, span.count, span.seen);
    row_count_ += span.count;
  }
  span_tokens_.upload(ops, static_cast<size_t>(row_count_) * sizeof(int32_t));
  kv_lens_.upload(ops, static_cast<size_t>(row_count_) * sizeof(int32_t));
  set_spans(ops, SpanUse::kCrossQuery, spans, tables);
  params_.set.use = SpanUse::kCrossQuery;
  params_.kv_lens = kv_lens_.device<int32_t>();
}

void CrossLayers::run(Operators& ops, int index, const CrossLayerWeights& layer, DenseMlp& mlp, float* hidden) {
  const int size = spec_.hidden_size;
  ops.gather_rows(hidden, span_tokens_.device<int32_t>(), row_count_, size, x_);

  ops.norm(layer.attention_norm.view, x_, row_count_, size, normed_);
  ops.linear(layer.q.view, normed_, row_count_, queries_, false);
  const HeadsView queries = heads(queries_, row_count_, spec_.num_heads, spec_.num_heads * spec_.head_dim, 0);
  ops.norm_heads(layer.q_norm.view, queries);
  ops.scale(spec_.attention.scale, queries);
  choose_layer(params_, index);
  ops.paged_attention(params_, queries, attention_output_);
  ops.linear(layer.o.view, attention_output_, row_count_, branch_, false);
  add_gated(ops, layer.attention_gate);

  ops.norm(layer.mlp_norm.view, x_, row_count_, size, normed_);
  mlp.run(StepContext{ops, row_count_}, layer.mlp, normed_, branch_, false);
  add_gated(ops, layer.mlp_gate);
  ops.scatter_rows(x_, span_tokens_.device<int32_t>(), row_count_, size, hidden, false);
}

void CrossLayers::add_gated(Operators& ops, float gate) {
  if (is_divided_) ops.all_reduce(branch_, static_cast<size_t>(row_count_) * static_cast<size_t>(spec_.hidden_size));
  ops.add_scaled(gate, branch_, row_count_, spec_.hidden_size, x_);
}

}  // namespace turbomind
