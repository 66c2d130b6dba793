// The attention half of a layer: plain key and value heads, or latent attention, which caches less. Layers are of one
// kind or of several (ModelSpec::attentions), each with sizes of its own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "device/operators.h"
#include "kernels/disentangled_attention.h"
#include "kernels/heads_view.h"
#include "kernels/paged_attention.h"
#include "model/attention/indexer.h"
#include "model/attention/latent_attention.h"
#include "model/attention/rope_tables.h"
#include "model/cache_memory.h"
#include "model/norm_storage.h"
#include "model/spec/shard.h"
#include "model/step/program.h"
#include "model/text_encoder.h"
#include "weights/weight_reader.h"

namespace turbomind {

struct Weights;

struct AttentionWeights {
  LinearStorage qkv;  // and a gate, where attention has one; queries alone where the keys are another layer's;
                      // empty with latent attention
  std::optional<LatentWeights> latent;
  std::optional<BlockIndexerWeights> block_indexer;
  NormStorage q_norm;
  NormStorage k_norm;
  AlignedBuffer sinks;            // float32 [num_heads], or empty
  AlignedBuffer distance_biases;  // float32 [num_heads, 2 bias_reach + 1], or empty
  LinearStorage o;
  WEIGHT_MEMBERS(qkv, latent, block_indexer, q_norm, k_norm, sinks, distance_biases, o)

  // `inputs`: of queries, keys and values.
  static AttentionWeights load(const Shard& shard, const WeightReader& read, const std::string& prefix, int layer,
                               int inputs);
};

class SelfAttention final : public LayerMemory {
 public:
  SelfAttention(Operators& ops, const ModelSpec& spec, CacheType cache_type, int max_tokens);

  std::vector<CacheGroup> cache_groups(const StepLimits& limits) const override;
  // Called once, before the first step of an encoder: takes what the texts of a step need while a layer runs.
  void allocate_texts(Operators& ops, int max_texts) {
    if (texts_) texts_->allocate(ops, max_texts);
  }
  // Where scores have products with vectors of distances: makes these once, before the first step.
  void project_distances(Operators& ops, const Weights& weights);
  size_t use_cache(Operators& ops, const CachePlan& plan, size_t first_group, std::byte* pages) override;
  int table_count() const { return static_cast<int>(tables_.size()); }
  int cache_variant(int prompt_len) const { return ropes_.variant(prompt_len); }
  // Prepares what all layers share: positions, cache blocks; then, on the device, rotations.
  void begin_step(Operators& ops, const StepInput& input) override;
  void fill_tables(const StepContext& step) {
    ropes_.fill(step.ops, step.rows);
    if (block_indexer_) block_indexer_->fill_tables(step);
  }
  // Adds the operations of a layer, of x and y [rows, hidden], not overlapping. They write the rows' keys and values.
  void compile(Program& program, int layer, const AttentionWeights& weights, const Source& x, const Target& y);

 private:
  // Common state of the layers of a kind.
  struct Kind {
    AttentionSpec spec;
    int num_heads;
    CacheLayout shape;               // without a block's length
    int row_width;                   // of qkv_: queries, keys, values unless a part of the keys, and a gate
    AlignedBuffer alibi_slopes;      // [heads], or empty
    AlignedBuffer distance_buckets;  // int32, AttentionSpec::distance_buckets
    Staged query_factors;            // float32 [max_tokens]
    Staged unrotated_factors;        // the same of layers that do not rotate, where these differ
  };
  // Operands of attention, of no rows yet; keys and values may overlap. Without keys of its own, a layer has queries
  // alone.
  struct Heads {
    HeadsView queries;
    HeadsView keys;
    HeadsView values;
    HeadsView gates;  // of what comes out, where attention has one
  };
  static Kind make_kind(Operators& ops, const ModelSpec& spec, int kind, CacheType cache_type, int max_tokens);
  Kind& kind_of(int layer) { return kinds_[static_cast<size_t>(attention_of(spec_, layer))]; }
  bool has_keys(int layer) const { return keys_of(spec_, layer) < 0; }
  bool remembers(int layer) const { return has_attention(spec_, layer) && has_keys(layer); }
  Heads heads(const Kind& kind, bool has_keys) const;
  // The parts of `compile`.
  void compile_latent(Program& program, int layer, const LatentWeights& weights, const Source& x);
  void compile_projection(Program& program, int layer, const AttentionWeights& weights, const Source& x);
  void compile_head_norms(Program& program, int layer, const AttentionWeights& weights);
  // Null where tokens attend to all before them.
  Indexer* indexer() {
    if (token_indexer_) return &*token_indexer_;
    return block_indexer_ ? &*block_indexer_ : nullptr;
  }
  // Whether a layer attends to chosen tokens alone.
  bool chooses(int layer) const {
    return token_indexer_ || (block_indexer_ && spec_.attention.block_indexer->layers[static_cast<size_t>(layer)]);
  }
  void compile_distances(Program& program, int layer, const Heads& qkv);
  void compile_output(Program& program, int layer, const Heads& qkv, const AttentionWeights& weights, const Target& y);
  void norm_heads(Operators& ops, QkNorm kind, const NormStorage& norm, const HeadsView& heads) const;
  NormWeight unit_norm() const { return {NormKind::kRms, spec_.norm.eps, unit_, nullptr}; }
  bool rotates(int layer) const { return spec_.layer_ropes[static_cast<size_t>(layer)] >= 0; }
  // A table for each page of a group.
  void add_tables(const CacheGroup& group, const CacheLayout& layout);
  // Sets where the layer's keys and values are, and which of them each row sees.
  void set_params(int layer, const AttentionWeights& weights);
  static void fill_query_factors(Operators& ops, const StepInput& input, Kind& kind);
  void fill_kv_lens(Operators& ops, const StepInput& input);

  // Where a layer's memory is.
  struct LayerTables {
    int table = 0;  // of its own
    int piece = 0;  // of a page
  };
  // Of the pages that a group's layers share.
  struct Table {
    int number = 0;  // in StepSpan::tables
    int chunk = 0;   // its tokens, where attention.is_chunked
    CacheLayout layout;
  };

  ModelSpec spec_;
  std::vector<Kind> kinds_;
  std::optional<LatentAttention> latent_;
  std::optional<TokenIndexer> token_indexer_;  // where tokens attend to chosen ones
  std::optional<BlockIndexer> block_indexer_;
  std::byte* pages_ = nullptr;
  std::vector<Table> tables_;
  std::vector<LayerTables> memory_;  // [layers]
  RopeTables ropes_;
  AttentionParams params_;           // of the step, and of the layer that is run
  FloatRows qkv_;                    // [max_tokens, Kind::row_width]
  FloatRows attention_output_;       // [max_tokens, heads value_dim]
  FloatRows expanded_;               // [max_tokens, heads mla.value_dim], of latent attention
  FloatRows unit_;                   // ones [head_dim], the weight of QkNorm::kUnit and of norms_values
  Staged kv_lens_;                   // int32 [max_tokens], where images see ahead
  std::optional<TextMemory> texts_;  // of an encoder, whose layers have no other memory
  OperationFunction<DisentangledAttention> attend_by_distance_ = nullptr;
  // Of disentangled attention, by layer: float32 [2, heads, buckets, head_dim], queries before keys.
  std::vector<AlignedBuffer> distances_;
};

}  // namespace turbomind
