#include "model/attention/compressed_attention.h"

#include <algorithm>
#include <utility>

namespace turbomind {

namespace {

constexpr std::array kKinds{Compression::kNone, Compression::kSparse, Compression::kHeavy};

// The ropes, then the same that turn back.
std::vector<RopeSpec> forth_and_back(std::vector<RopeSpec> ropes) {
  const size_t count = ropes.size();
  for (size_t i = 0; i < count; ++i) {
    RopeSpec back = ropes[i];
    for (float& frequency : back.inv_freq) frequency = -frequency;
    ropes.push_back(std::move(back));
  }
  return ropes;
}

CompressorWeights load_compressor(const ModelSpec& spec, const WeightReader& read, const std::string& prefix, int ratio,
                                  int numbers, int dim) {
  return {read.linear(prefix + "rows", 2 * numbers, spec.hidden_size, false),
          read.matrix(prefix + "biases", ratio, numbers, DType::kFloat32),
          NormStorage::load(read, prefix + "norm", dim, spec.norm, false)};
}

}  // namespace

CompressedAttentionWeights CompressedAttentionWeights::load(const ModelSpec& spec, const WeightReader& read,
                                                            const std::string& prefix, int layer) {
  const CompressedAttentionSpec& config = *spec.compressed_attention;
  const Compression kind = config.layers[static_cast<size_t>(layer)];
  const int dim = spec.head_dim;
  const int outputs = config.output_groups * config.output_rank;
  CompressedAttentionWeights weights;
  weights.q_down = read.linear(prefix + "q_down", config.q_rank, spec.hidden_size, false);
  weights.q_down_norm = NormStorage::load(read, prefix + "q_down_norm", config.q_rank, spec.norm, false);
  weights.q_up = read.linear(prefix + "q_up", spec.num_heads * dim, config.q_rank, false);
  weights.key = read.linear(prefix + "key", dim, spec.hidden_size, false);
  weights.key_norm = NormStorage::load(read, prefix + "key_norm", dim, spec.norm, false);
  if (kind == Compression::kHeavy) {
    weights.compressor = load_compressor(spec, read, prefix + "compressor.", config.heavy_ratio, dim, dim);
  }
  if (kind == Compression::kSparse) {
    const int ratio = config.sparse_ratio;
    const int index_dim = config.index_head_dim;
    const std::string indexer = prefix + "indexer.";
    weights.compressor = load_compressor(spec, read, prefix + "compressor.", ratio, 2 * dim, dim);
    weights.indexer = {load_compressor(spec, read, indexer, ratio, 2 * index_dim, index_dim),
                       read.linear(indexer + "queries", config.index_heads * index_dim, config.q_rank, false),
                       read.linear(indexer + "heads", config.index_heads, spec.hidden_size, false)};
  }
  weights.sinks = read.vector(prefix + "sinks", spec.num_heads);
  weights.output_down = read.matrix(prefix + "output_down.weight", outputs, spec.num_heads * dim / config.output_groups,
                                    read.options().dtype);
  weights.output = read.linear(prefix + "output", spec.hidden_size, outputs, false);
  return weights;
}

CompressedAttentionLayers::CompressedAttentionLayers(Operators& ops, const ModelSpec& spec, CacheType cache_type,
                                                     int max_tokens)
    : write_(ops.operations().require<WriteCacheRows>()),
      compress_(ops.operations().require<CompressKeys>()),
      choose_(ops.operations().require<ChooseCompressedKeys>()),
      attend_(ops.operations().require<CompressedAttention>()),
      head_linear_(ops.operations().require<HeadLinear>()),
      config_(*spec.compressed_attention),
      layer_ropes_(spec.layer_ropes),
      heads_(spec.num_heads),
      dim_(spec.head_dim),
      rotated_(2 * static_cast<int>(spec.ropes.front().inv_freq.size())),
      type_(cache_type == CacheType::kFloat32 ? cache_type : CacheType::kBFloat16),
      ropes_(ops, forth_and_back(spec.ropes), max_tokens),
      starts_{RopeTables(ops, spec.ropes, max_tokens, config_.sparse_ratio - 1),
              RopeTables(ops, spec.ropes, max_tokens, config_.heavy_ratio - 1)},
      query_scale_(uploaded(ops, std::vector<float>(static_cast<size_t>(dim_), spec.attention.scale))),
      latents_(ops, max_tokens, config_.q_rank),
      queries_(ops, max_tokens, heads_ * dim_),
      rows_(ops, max_tokens, 4 * std::max(dim_, config_.index_head_dim)),
      index_queries_(ops, max_tokens, config_.index_heads * config_.index_head_dim),
      index_weights_(ops, max_tokens, config_.index_heads),
      chosen_(ops.allocate(static_cast<size_t>(max_tokens) * static_cast<size_t>(config_.top_k) * sizeof(int32_t))),
      attended_(ops, max_tokens, heads_ * dim_),
      grouped_(ops, max_tokens, config_.output_groups * config_.output_rank) {
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    places_.push_back(counts_[static_cast<size_t>(kind(layer))]++);
  }
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    window_places_.push_back(window_counts_[static_cast<size_t>(window_kind(layer))]++);
  }
}

int CompressedAttentionLayers::ratio(Compression kind) const {
  if (kind == Compression::kNone) return 0;
  return kind == Compression::kSparse ? config_.sparse_ratio : config_.heavy_ratio;
}

Compression CompressedAttentionLayers::window_kind(int layer) const {
  if (kind(layer) != Compression::kNone) return kind(layer);
  const auto has = [this](Compression kind) { return counts_[static_cast<size_t>(kind)] > 0; };
  return has(Compression::kHeavy)    ? Compression::kHeavy
         : has(Compression::kSparse) ? Compression::kSparse
                                     : kind(layer);
}

int CompressedAttentionLayers::row_size(Compression kind) const {
  if (kind == Compression::kNone) return dim_;
  return dim_ + 2 * series(kind) * dim_ + (kind == Compression::kSparse ? 4 * config_.index_head_dim : 0);
}

int CompressedAttentionLayers::pieces_of(Compression kind, int rows, int block_tokens) const {
  const int sharing = rows / rows_of_block(kind, block_tokens);
  return (counts_[static_cast<size_t>(kind)] + sharing - 1) / sharing;
}

std::vector<CacheGroup> CompressedAttentionLayers::cache_groups(const StepLimits& limits) const {
  std::vector<CacheGroup> groups;
  CacheGroup compressed;
  compressed.block_len = limits.block_len;
  int rows = 0;
  for (const Compression kind : kKinds) {
    const int count = window_counts_[static_cast<size_t>(kind)];
    if (count == 0) continue;
    const CacheLayout layout{type_, 1, 1, row_size(kind), 0, limits.block_len};
    CacheGroup& group = groups.emplace_back();
    group.kind = MemoryKind::kWindow;
    group.window = std::max(config_.window, series(kind) * ratio(kind));
    group.block_len = limits.block_len;
    group.pieces = count;
    group.piece_bytes = layout.layer_bytes();
    if (kind != Compression::kNone) rows = std::max(rows, rows_of_block(kind, limits.block_len));
  }
  if (rows == 0) return groups;
  for (const Compression kind : {Compression::kSparse, Compression::kHeavy}) {
    compressed.pieces += pieces_of(kind, rows, limits.block_len);
  }
  compressed.piece_bytes = CacheLayout{type_, 1, 1, dim_ + config_.index_head_dim, 0, rows}.layer_bytes();
  groups.push_back(std::move(compressed));
  return groups;
}

size_t CompressedAttentionLayers::use_cache(Operators&, const CachePlan& plan, size_t first_group, std::byte* pages) {
  pages_ = pages;
  tables_.clear();
  block_tokens_ = plan.block_len;
  size_t index = first_group;
  const auto take = [&](Pages& to, int row_size, int rows) {
    const CacheGroup& group = plan.groups.at(index++);
    to = {{type_, group.page_pieces, 1, row_size, 0, rows, plan.page_bytes}, static_cast<int>(tables_.size())};
    for (int page = 0; page < group.pages; ++page) tables_.push_back(group.first_table + page);
  };
  int rows = 0;
  for (const Compression kind : kKinds) {
    if (window_counts_[static_cast<size_t>(kind)] == 0) continue;
    take(last_[static_cast<size_t>(kind)], row_size(kind), block_tokens_);
    if (kind != Compression::kNone) rows = std::max(rows, rows_of_block(kind, block_tokens_));
  }
  if (rows > 0) take(compressed_, dim_ + config_.index_head_dim, rows);
  return index - first_group;
}

void CompressedAttentionLayers::begin_step(Operators& ops, const StepInput& input) {
  ropes_.stage(ops, input);
  for (RopeTables& starts : starts_) starts.stage(ops, input);
  for (size_t table = 0; table < tables_.size(); ++table) {
    std::vector<AttentionSpan> spans;
    spans.reserve(input.spans.size());
    for (const StepSpan& span : input.spans) {
      const std::vector<int32_t>& pages = (*span.tables)[static_cast<size_t>(tables_[table])];
      spans.push_back({span.first_token, span.count, span.first_position, pages.data()});
    }
    ops.set_spans({SpanUse::kTokens, static_cast<int>(table)}, std::move(spans), block_tokens_);
  }
}

void CompressedAttentionLayers::fill_tables(const StepContext& step) {
  ropes_.fill(step.ops, step.rows);
  for (RopeTables& starts : starts_) starts.fill(step.ops, step.rows);
}

CacheRows CompressedAttentionLayers::rows_at(const Pages& pages, int piece, int tokens, int first_row) const {
  CacheRows rows{{}, block_tokens_, tokens, first_row};
  rows.params.layout = pages.layout;
  rows.params.pool = pages_;
  rows.params.layer = piece % pages.layout.num_layers;
  rows.params.set.table = pages.first_table + piece / pages.layout.num_layers;
  return rows;
}

CacheRows CompressedAttentionLayers::last_rows(int layer) const {
  return rows_at(last_[static_cast<size_t>(window_kind(layer))], window_places_[static_cast<size_t>(layer)], 1, 0);
}

CacheRows CompressedAttentionLayers::compressed_rows(int layer) const {
  if (kind(layer) == Compression::kNone) {
    CacheRows none;
    none.tokens = 0;
    return none;
  }
  const int rows = compressed_.layout.block_len;
  const int of_layer = rows_of_block(kind(layer), block_tokens_);
  const int sharing = rows / of_layer;
  const int place = places_[static_cast<size_t>(layer)];
  const int before = kind(layer) == Compression::kHeavy ? pieces_of(Compression::kSparse, rows, block_tokens_) : 0;
  return rows_at(compressed_, before + place / sharing, ratio(kind(layer)), place % sharing * of_layer);
}

HeadsView CompressedAttentionLayers::rotated(const HeadsView& heads) const {
  HeadsView part = heads;
  part.first += heads.head_dim - rotated_;
  part.head_dim = rotated_;
  return part;
}

RopeTable CompressedAttentionLayers::table(int layer, bool turns_back) const {
  const int rope = layer_ropes_[static_cast<size_t>(layer)];
  return ropes_.table(turns_back ? rope + 2 : rope);
}

void CompressedAttentionLayers::compile(Program& program, int layer, const CompressedAttentionWeights& weights,
                                        const Source& source, const Target& y) {
  const Source x = program.made(source);
  const float* rows = x.rows.x.floats();
  program.add("cache = rope(norm(key(" + x.name + ")))",
              [this, layer, &weights, rows](ModelStep& step) { write_keys(step, layer, weights, rows); });
  if (weights.compressor) {
    program.add("cache = compressed keys(" + x.name + ")", [this, layer, &weights, rows](ModelStep& step) {
      compress(step, layer, *weights.compressor, keys_of(kind(layer)), rows);
    });
  }
  program.add("queries = rope(norm(queries(" + x.name + ")))",
              [this, layer, &weights, rows](ModelStep& step) { make_queries(step, layer, weights, rows); });
  if (weights.indexer) {
    program.add("chosen = indexer(" + x.name + ")",
                [this, layer, &weights, rows](ModelStep& step) { choose(step, layer, *weights.indexer, rows); });
  }
  program.add("attended = rope back(attend(queries))",
              [this, layer, &weights](ModelStep& step) { attend(step, layer, weights); });
  program.add(y.is() + "output(groups(attended))", [this, &weights, y](ModelStep& step) {
    const auto inputs = static_cast<size_t>(heads_ * dim_ / config_.output_groups);
    const auto outputs = static_cast<size_t>(config_.output_rank);
    const int groups = config_.output_groups;
    head_linear_(step.ops, {weights.output_down.view,
                            {attended_, step.rows, groups * inputs, groups, inputs, static_cast<int>(inputs)},
                            {grouped_, step.rows, groups * outputs, groups, outputs, config_.output_rank}});
    step.linear(weights.output, grouped_, y.rows.data, y.accumulates);
  });
}

void CompressedAttentionLayers::write_keys(const StepContext& step, int layer,
                                           const CompressedAttentionWeights& weights, const float* x) {
  const HeadsView key = rows_view(rows_, step.rows, dim_);
  step.ops.linear(weights.key.view, x, step.rows, rows_, false);
  step.ops.norm_heads(weights.key_norm.view, key);
  step.ops.rope(table(layer, false), rotated(key), nullptr);
  write_(step.ops, {last_rows(layer), 0, key});
}

void CompressedAttentionLayers::compress(const StepContext& step, int layer, const CompressorWeights& weights,
                                         const Compressed& keys, const float* x) {
  const CacheRows last = last_rows(layer);
  const bool is_heavy = kind(layer) == Compression::kHeavy;
  step.ops.linear(weights.rows.view, x, step.rows, rows_, false);
  write_(step.ops, {last, keys.offset, rows_view(rows_, step.rows, weights.rows.view.out_features)});
  compress_(step.ops, {last, keys.offset, compressed_rows(layer), keys.to, ratio(kind(layer)), keys.series,
                       weights.biases.data.as<float>(), weights.norm.view, keys.dim,
                       starts_[is_heavy].table(layer_ropes_[static_cast<size_t>(layer)]), keys.dim - rotated_});
}

void CompressedAttentionLayers::make_queries(const StepContext& step, int layer,
                                             const CompressedAttentionWeights& weights, const float* x) {
  const auto dim = static_cast<size_t>(dim_);
  const HeadsView queries{queries_, step.rows, heads_ * dim, heads_, dim, dim_};
  step.ops.linear(weights.q_down.view, x, step.rows, latents_, false);
  step.ops.norm(weights.q_down_norm.view, latents_, step.rows, config_.q_rank, latents_);
  step.ops.linear(weights.q_up.view, latents_, step.rows, queries_, false);
  step.ops.norm_heads({weights.q_down_norm.view.kind, weights.q_down_norm.view.eps, query_scale_, nullptr}, queries);
  step.ops.rope(table(layer, false), rotated(queries), nullptr);
}

void CompressedAttentionLayers::choose(const StepContext& step, int layer, const CompressedIndexerWeights& weights,
                                       const float* x) {
  compress(step, layer, weights.keys, index_keys(), x);
  const auto dim = static_cast<size_t>(config_.index_head_dim);
  const int heads = config_.index_heads;
  const HeadsView queries{index_queries_, step.rows, heads * dim, heads, dim, config_.index_head_dim};
  step.ops.linear(weights.queries.view, latents_, step.rows, index_queries_, false);
  step.ops.rope(table(layer, false), rotated(queries), nullptr);
  step.ops.linear(weights.heads.view, x, step.rows, index_weights_, false);
  choose_(step.ops, {compressed_rows(layer), dim_, config_.sparse_ratio, config_.top_k, queries, index_weights_,
                     chosen_.as<int32_t>()});
}

void CompressedAttentionLayers::attend(const StepContext& step, int layer, const CompressedAttentionWeights& weights) {
  const auto dim = static_cast<size_t>(dim_);
  const HeadsView queries{queries_, step.rows, heads_ * dim, heads_, dim, dim_};
  const int top_k = kind(layer) == Compression::kSparse ? config_.top_k : 0;
  attend_(step.ops, {last_rows(layer), config_.window, compressed_rows(layer), top_k, chosen_.as<int32_t>(),
                     weights.sinks.as<float>(), queries, attended_});
  step.ops.rope(table(layer, true), rotated({attended_, step.rows, heads_ * dim, heads_, dim, dim_}), nullptr);
}

}  // namespace turbomind
