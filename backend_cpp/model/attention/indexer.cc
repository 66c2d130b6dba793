#include "model/attention/indexer.h"

namespace turbomind {

Indexer::Indexer(Operators& ops, int num_heads, int head_dim, int row_size, int top_k, int block, bool is_by_head,
                 int max_tokens)
    : queries_(ops, max_tokens, num_heads * head_dim),
      keys_(ops, max_tokens, row_size),
      chosen_(ops.allocate(static_cast<size_t>(max_tokens) * static_cast<size_t>(is_by_head ? num_heads : 1) *
                           static_cast<size_t>(top_k) * sizeof(int32_t))),
      sparse_attention_(ops.operations().require<SparseAttention>()),
      num_heads_(num_heads),
      head_dim_(head_dim),
      top_k_(top_k),
      block_(block),
      is_by_head_(is_by_head) {}

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

AttentionParams Indexer::key_params(int layer) const {
  const int piece = pieces_[static_cast<size_t>(layer)];
  AttentionParams params;
  params.layout = shape_;
  params.pool = pages_;
  params.layer = piece % shape_.num_layers;
  params.num_heads = num_heads_;
  params.set.table = first_table_ + piece / shape_.num_layers;
  return params;
}

namespace {

// Numbers of a token: its key, and gates of it where keys are pooled.
int row_size(const IndexerSpec& indexer) {
  return (indexer.pool > 1 ? 2 : 1) * indexer.head_dim;
}

}  // namespace

TokenIndexerWeights TokenIndexerWeights::load(const ModelSpec& spec, const WeightReader& read,
                                              const std::string& prefix) {
  const MlaSpec& mla = *spec.attention.mla;
  const IndexerSpec& indexer = *mla.indexer;
  const NormSpec norm{.eps = indexer.norm_eps, .kind = NormKind::kLayer};
  TokenIndexerWeights weights{read.linear(prefix + "queries", indexer.num_heads * indexer.head_dim, mla.q_rank, false),
                              read.linear(prefix + "keys", row_size(indexer), spec.hidden_size, false),
                              NormStorage::load(read, prefix + "key_norm", indexer.head_dim, norm, true),
                              read.linear(prefix + "heads", indexer.num_heads, spec.hidden_size, false),
                              {}};
  if (indexer.pool > 1) {
    weights.biases = read.matrix(prefix + "biases", indexer.pool, indexer.head_dim, DType::kFloat32);
  }
  return weights;
}

TokenIndexer::TokenIndexer(Operators& ops, const ModelSpec& spec, CacheType cache_type, int max_tokens)
    : Indexer(ops, spec.num_layers, spec.attention.mla->indexer->num_heads, spec.attention.mla->indexer->head_dim,
              row_size(*spec.attention.mla->indexer),
              spec.attention.mla->indexer->top_k + spec.attention.mla->indexer->pool - 1,
              spec.attention.mla->indexer->pool, cache_type, max_tokens,
              [&spec](int layer) {
                return has_attention(spec, layer) && spec.attention.mla->indexer->layers[static_cast<size_t>(layer)];
              }),
      spec_(*spec.attention.mla->indexer),
      choose_(ops.operations().require<ChooseKeys>()),
      write_(spec_.pool > 1 ? ops.operations().require<WriteCacheRows>() : nullptr),
      compress_(spec_.pool > 1 ? ops.operations().require<CompressKeys>() : nullptr),
      choose_pools_(spec_.pool > 1 ? ops.operations().require<ChooseCompressedKeys>() : nullptr),
      heads_(ops, max_tokens, spec_.num_heads) {}

void TokenIndexer::choose(const StepContext& step, int layer, const TokenIndexerWeights& weights, const float* x,
                          const float* latents, RopeTable table) {
  Operators& ops = step.ops;
  const auto dim = static_cast<size_t>(row_size(spec_));
  const HeadsView index_keys{keys_, step.rows, dim, 1, dim, spec_.head_dim};
  ops.linear(weights.queries.view, latents, step.rows, queries_, false);
  ops.linear(weights.keys.view, x, step.rows, keys_, false);
  ops.norm_heads(weights.key_norm.view, index_keys);
  ops.linear(weights.heads.view, x, step.rows, heads_, false);

  const AttentionParams index = key_params(layer);
  const HeadsView queries = queries_view(step.rows);
  if (spec_.pool > 1) {
    const CacheRows keys{index, index.layout.block_len};
    write_(ops, {keys, 0, rows_view(keys_, step.rows, row_size(spec_))});
    compress_(ops, {keys, 0, keys, 0, spec_.pool, 1, weights.biases.data.as<float>(), {}, spec_.head_dim, {}});
    return choose_pools_(ops,
                         {keys, 0, spec_.pool, spec_.top_k / spec_.pool, queries, heads_, chosen_.as<int32_t>(), true});
  }
  table.is_interleaved = spec_.is_interleaved;
  ops.rope_and_write(table, index, queries, nullptr, index_keys, {keys_, step.rows, dim, 1, dim, 0});
  choose_(ops, {index, spec_.top_k, queries, heads_, chosen_.as<int32_t>()});
}

BlockIndexerWeights BlockIndexerWeights::load(const ModelSpec& spec, const WeightReader& read,
                                              const std::string& prefix) {
  const BlockIndexerSpec& indexer = *spec.attention.block_indexer;
  return {read.linear(prefix + "queries", indexer.num_heads * indexer.head_dim, spec.hidden_size, false),
          read.linear(prefix + "keys", indexer.head_dim, spec.hidden_size, false),
          NormStorage::load(read, prefix + "query_norm", indexer.head_dim, spec.norm, false),
          NormStorage::load(read, prefix + "key_norm", indexer.head_dim, spec.norm, false)};
}

BlockIndexer::BlockIndexer(Operators& ops, const ModelSpec& spec, CacheType cache_type, int max_tokens)
    : Indexer(
          ops, spec.num_layers, spec.attention.block_indexer->num_heads, spec.attention.block_indexer->head_dim,
          spec.attention.block_indexer->head_dim,
          spec.attention.block_indexer->budget +
              (spec.attention.block_indexer->is_by_best ? 0 : spec.attention.block_indexer->block - 1),
          spec.attention.block_indexer->block, cache_type, max_tokens,
          [&spec](int layer) {
            return has_attention(spec, layer) && spec.attention.block_indexer->layers[static_cast<size_t>(layer)];
          },
          spec.attention.block_indexer->is_by_best),
      spec_(*spec.attention.block_indexer),
      write_(spec_.is_by_best ? nullptr : ops.operations().require<WriteCacheRows>()),
      compress_(spec_.is_by_best ? nullptr : ops.operations().require<CompressKeys>()),
      choose_(spec_.is_by_best ? nullptr : ops.operations().require<ChooseCompressedKeys>()),
      choose_best_(spec_.is_by_best ? ops.operations().require<ChooseBestBlocks>() : nullptr),
      starts_(ops, {spec.ropes.front()}, max_tokens, spec_.block - 1) {}

void BlockIndexer::choose(const StepContext& step, int layer, const BlockIndexerWeights& weights, const float* x,
                          RopeTable table) {
  Operators& ops = step.ops;
  const HeadsView queries = queries_view(step.rows);
  ops.linear(weights.queries.view, x, step.rows, queries_, false);
  ops.norm_heads(weights.query_norm.view, queries);
  ops.linear(weights.keys.view, x, step.rows, keys_, false);

  const AttentionParams index = key_params(layer);
  if (spec_.is_by_best) {
    const auto dim = static_cast<size_t>(spec_.head_dim);
    const HeadsView keys{keys_, step.rows, dim, 1, dim, spec_.head_dim};
    ops.norm_heads(weights.key_norm.view, keys);
    ops.rope_and_write(table, index, queries, nullptr, keys, {keys_, step.rows, dim, 1, dim, 0});
    return choose_best_(ops, {index, spec_.budget / spec_.block, spec_.block, queries, chosen_.as<int32_t>()});
  }
  ops.rope(table, queries, nullptr);
  const CacheRows keys{index, index.layout.block_len};
  write_(ops, {keys, 0, rows_view(keys_, step.rows, spec_.head_dim)});
  compress_(ops, {keys, 0, keys, 0, spec_.block, 1, nullptr, weights.key_norm.view, spec_.head_dim, starts_.table(0)});
  choose_(ops, {keys, 0, spec_.block, spec_.budget / spec_.block, queries, nullptr, chosen_.as<int32_t>(), true});
}

}  // namespace turbomind
