#include "model/attention/indexer.h"

namespace turbomind {

IndexerWeights IndexerWeights::load(const ModelSpec& spec, const WeightReader& read, const std::string& prefix) {
  const MlaSpec& mla = *spec.attention.mla;
  const IndexerSpec& indexer = *mla.indexer;
  const NormSpec norm{.eps = indexer.norm_eps, .kind = NormKind::kLayer};
  return {read.linear(prefix + "queries", indexer.num_heads * indexer.head_dim, mla.q_rank, false),
          read.linear(prefix + "keys", indexer.head_dim, spec.hidden_size, false),
          NormStorage::load(read, prefix + "key_norm", indexer.head_dim, norm, true),
          read.linear(prefix + "heads", indexer.num_heads, spec.hidden_size, false)};
}

Indexer::Indexer(Operators& ops, const ModelSpec& spec, CacheType cache_type, int max_rows)
    : spec_(*spec.attention.mla->indexer),
      choose_(ops.operations().require<ChooseKeys>()),
      sparse_attention_(ops.operations().require<SparseAttention>()),
      pieces_(static_cast<size_t>(spec.num_layers), -1),
      queries_(ops, max_rows, spec_.num_heads * spec_.head_dim),
      keys_(ops, max_rows, spec_.head_dim),
      heads_(ops, max_rows, spec_.num_heads),
      chosen_(ops.allocate(static_cast<size_t>(max_rows) * static_cast<size_t>(spec_.top_k) * sizeof(int32_t))) {
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    if (!has_attention(spec, layer) || !spec_.layers[static_cast<size_t>(layer)]) continue;
    pieces_[static_cast<size_t>(layer)] = static_cast<int>(layers_.size());
    layers_.push_back(layer);
  }
  const CacheType type = cache_type == CacheType::kFloat32 ? cache_type : CacheType::kBFloat16;
  shape_ = {type, static_cast<int>(layers_.size()), 1, spec_.head_dim, 0, 0};
}

CacheGroup Indexer::cache_group(const StepLimits& limits) const {
  return {.block_len = limits.block_len,
          .pieces = static_cast<int>(layers_.size()),
          .piece_bytes = with_layout(shape_, limits.block_len).layer_bytes(),
          .layers = layers_};
}

void Indexer::use_cache(const CacheGroup& group, size_t page_bytes, int first_table, std::byte* pages) {
  pages_ = pages;
  first_table_ = first_table;
  shape_ = with_layout(shape_, group.block_len, group.page_pieces, page_bytes);
}

void Indexer::choose(const StepContext& step, int layer, const IndexerWeights& weights, const float* x,
                     const float* latents, RopeTable table) {
  Operators& ops = step.ops;
  const auto dim = static_cast<size_t>(spec_.head_dim);
  const int piece = pieces_[static_cast<size_t>(layer)];
  ops.linear(weights.queries.view, latents, step.rows, queries_, false);
  ops.linear(weights.keys.view, x, step.rows, keys_, false);
  ops.norm(weights.key_norm.view, keys_, step.rows, spec_.head_dim, keys_);
  ops.linear(weights.heads.view, x, step.rows, heads_, false);

  AttentionParams index;
  index.layout = shape_;
  index.pool = pages_;
  index.layer = piece % shape_.num_layers;
  index.num_heads = spec_.num_heads;
  index.set.table = first_table_ + piece / shape_.num_layers;
  const HeadsView index_queries{queries_, step.rows, spec_.num_heads * dim, spec_.num_heads, dim, spec_.head_dim};
  const HeadsView index_keys{keys_, step.rows, dim, 1, dim, spec_.head_dim};
  table.is_interleaved = spec_.is_interleaved;
  ops.rope_and_write(table, index, index_queries, nullptr, index_keys, {keys_, step.rows, dim, 1, dim, 0});
  choose_(ops, {index, spec_.top_k, index_queries, heads_, chosen_.as<int32_t>()});
}

BlockIndexerWeights BlockIndexerWeights::load(const ModelSpec& spec, const WeightReader& read,
                                              const std::string& prefix) {
  const BlockIndexerSpec& indexer = *spec.attention.block_indexer;
  return {read.linear(prefix + "queries", indexer.num_heads * indexer.head_dim, spec.hidden_size, false),
          read.linear(prefix + "keys", indexer.head_dim, spec.hidden_size, false),
          NormStorage::load(read, prefix + "query_norm", indexer.head_dim, spec.norm, false),
          NormStorage::load(read, prefix + "key_norm", indexer.head_dim, spec.norm, false)};
}

BlockIndexer::BlockIndexer(Operators& ops, const ModelSpec& spec, CacheType cache_type, int max_rows)
    : spec_(*spec.attention.block_indexer),
      write_(ops.operations().require<WriteBlockKeys>()),
      choose_(ops.operations().require<ChooseBlocks>()),
      sparse_attention_(ops.operations().require<SparseAttention>()),
      top_k_(spec_.budget + spec_.block - 1),
      pieces_(static_cast<size_t>(spec.num_layers), -1),
      frequencies_(uploaded(ops, spec.ropes.front().inv_freq)),
      rope_scale_(spec.ropes.front().attention_scaling),
      queries_(ops, max_rows, spec_.num_heads * spec_.head_dim),
      keys_(ops, max_rows, spec_.head_dim),
      chosen_(ops.allocate(static_cast<size_t>(max_rows) * static_cast<size_t>(top_k_) * sizeof(int32_t))) {
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    if (!has_attention(spec, layer)) continue;
    pieces_[static_cast<size_t>(layer)] = static_cast<int>(layers_.size());
    layers_.push_back(layer);
  }
  const CacheType type = cache_type == CacheType::kFloat32 ? cache_type : CacheType::kBFloat16;
  shape_ = {type, static_cast<int>(layers_.size()), 1, spec_.head_dim, 0, 0};
}

CacheGroup BlockIndexer::cache_group(const StepLimits& limits) const {
  return {.block_len = limits.block_len,
          .pieces = static_cast<int>(layers_.size()),
          .piece_bytes = with_layout(shape_, limits.block_len).layer_bytes(),
          .layers = layers_};
}

void BlockIndexer::use_cache(const CacheGroup& group, size_t page_bytes, int first_table, std::byte* pages) {
  pages_ = pages;
  first_table_ = first_table;
  shape_ = with_layout(shape_, group.block_len, group.page_pieces, page_bytes);
}

void BlockIndexer::choose(const StepContext& step, int layer, const BlockIndexerWeights& weights, const float* x,
                          RopeTable table) {
  Operators& ops = step.ops;
  const auto dim = static_cast<size_t>(spec_.head_dim);
  const int piece = pieces_[static_cast<size_t>(layer)];
  const HeadsView queries{queries_, step.rows, spec_.num_heads * dim, spec_.num_heads, dim, spec_.head_dim};
  ops.linear(weights.queries.view, x, step.rows, queries_, false);
  ops.norm_heads(weights.query_norm.view, queries);
  ops.rope(table, queries, nullptr);
  ops.linear(weights.keys.view, x, step.rows, keys_, false);

  AttentionParams index;
  index.layout = shape_;
  index.pool = pages_;
  index.layer = piece % shape_.num_layers;
  index.num_heads = spec_.num_heads;
  index.set.table = first_table_ + piece / shape_.num_layers;
  write_(ops, {index, spec_.block, rows_view(keys_, step.rows, spec_.head_dim), weights.key_norm.view,
               frequencies_.as<float>(), table.pairs, rope_scale_, table.is_interleaved});
  choose_(ops, {index, spec_.budget, spec_.block, queries, chosen_.as<int32_t>()});
}

}  // namespace turbomind
