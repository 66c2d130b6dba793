// Attention to the last tokens and to compressed keys (kernels/compressed_attention.h, CompressedAttentionSpec).
//
// Cache groups: for each kind of layer a window with the last tokens' keys, and with values and gates that are not
// compressed yet (layers that compress nothing are in one of the others); and one with the compressed keys of all
// tokens, index keys beside them. A piece of the latter is as large as a layer needs that compresses least; as many
// others share one as fit. Positions are those of tokens in all groups, so that prefixes, preemption and drafts are as
// with other layers.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "device/operators.h"
#include "kernels/compressed_attention.h"
#include "kernels/head_linear.h"
#include "model/attention/rope_tables.h"
#include "model/cache_memory.h"
#include "model/norm_storage.h"
#include "model/spec/model_spec.h"
#include "model/step/program.h"
#include "weights/weight_reader.h"

namespace turbomind {

// Weights that make compressed keys.
struct CompressorWeights {
  LinearStorage rows;    // [2 series dim, hidden]: values of each series, then gates
  LinearStorage biases;  // float32 [ratio, series dim]
  NormStorage norm;
  WEIGHT_MEMBERS(rows, biases, norm)
};

struct CompressedIndexerWeights {
  CompressorWeights keys;
  LinearStorage queries;  // [heads index_head_dim, q_rank]
  LinearStorage heads;    // [heads, hidden]; the weights of a token's heads
  WEIGHT_MEMBERS(keys, queries, heads)
};

struct CompressedAttentionWeights {
  LinearStorage q_down;  // [q_rank, hidden]
  NormStorage q_down_norm;
  LinearStorage q_up;  // [heads dim, q_rank]
  LinearStorage key;   // [dim, hidden]
  NormStorage key_norm;
  std::optional<CompressorWeights> compressor;
  std::optional<CompressedIndexerWeights> indexer;
  AlignedBuffer sinks;        // float32 [heads]
  LinearStorage output_down;  // [groups rank, heads dim / groups], never rounded
  LinearStorage output;       // [hidden, groups rank]
  WEIGHT_MEMBERS(q_down, q_down_norm, q_up, key, key_norm, compressor, indexer, sinks, output_down, output)

  static CompressedAttentionWeights load(const ModelSpec& spec, const WeightReader& read, const std::string& prefix,
                                         int layer);
};

class CompressedAttentionLayers final : public LayerMemory {
 public:
  CompressedAttentionLayers(Operators& ops, const ModelSpec& spec, CacheType cache_type, int max_tokens);

  std::vector<CacheGroup> cache_groups(const StepLimits& limits) const override;
  size_t use_cache(Operators& ops, const CachePlan& plan, size_t first_group, std::byte* pages) override;
  void begin_step(Operators& ops, const StepInput& input) override;
  void fill_tables(const StepContext& step);
  // Adds the operations of a layer, of x and y [rows, hidden], not overlapping.
  void compile(Program& program, int layer, const CompressedAttentionWeights& weights, const Source& x,
               const Target& y);

 private:
  // Where rows are: pages of a group from a table on, and their layout.
  struct Pages {
    CacheLayout layout;
    int first_table = 0;
  };
  // Keys that a layer compresses, and their places in its rows.
  struct Compressed {
    int dim;
    int series;
    int offset;  // of values and gates in a row of the last tokens
    int to;      // of the key in a row of compressed keys
  };
  Compression kind(int layer) const { return config_.layers[static_cast<size_t>(layer)]; }
  int ratio(Compression kind) const;
  int series(Compression kind) const { return kind == Compression::kSparse ? 2 : 1; }
  Compressed keys_of(Compression kind) const { return {dim_, series(kind), dim_, 0}; }
  Compressed index_keys() const { return {config_.index_head_dim, 2, 5 * dim_, dim_}; }
  // Numbers of a token's row.
  int row_size(Compression kind) const;
  // The kind whose window group a layer is in: few layers would fill a page of their own badly.
  Compression window_kind(int layer) const;
  // Compressed keys of a layer that a block of tokens ends, at most.
  int rows_of_block(Compression kind, int block_tokens) const { return (block_tokens + ratio(kind) - 1) / ratio(kind); }
  // Of compressed keys of `rows` each: what the layers of a kind take.
  int pieces_of(Compression kind, int rows, int block_tokens) const;
  CacheRows rows_at(const Pages& pages, int piece, int tokens, int first_row) const;
  CacheRows last_rows(int layer) const;
  CacheRows compressed_rows(int layer) const;
  // The rotated part of heads.
  HeadsView rotated(const HeadsView& heads) const;
  RopeTable table(int layer, bool turns_back) const;
  void write_keys(const StepContext& step, int layer, const CompressedAttentionWeights& weights, const float* x);
  void compress(const StepContext& step, int layer, const CompressorWeights& weights, const Compressed& keys,
                const float* x);
  void make_queries(const StepContext& step, int layer, const CompressedAttentionWeights& weights, const float* x);
  void choose(const StepContext& step, int layer, const CompressedIndexerWeights& weights, const float* x);
  void attend(const StepContext& step, int layer, const CompressedAttentionWeights& weights);

  OperationFunction<WriteCacheRows> write_;
  OperationFunction<CompressKeys> compress_;
  OperationFunction<ChooseCompressedKeys> choose_;
  OperationFunction<CompressedAttention> attend_;
  OperationFunction<HeadLinear> head_linear_;
  const CompressedAttentionSpec config_;
  const std::vector<int> layer_ropes_;
  int heads_;
  int dim_;
  int rotated_;
  CacheType type_;
  int block_tokens_ = 0;
  std::byte* pages_ = nullptr;
  std::vector<int> places_;         // [layers]: number among those of its kind
  std::array<int, 3> counts_{};     // layers, by kind
  std::vector<int> window_places_;  // the same of its window group
  std::array<int, 3> window_counts_{};
  std::array<Pages, 3> last_{};  // by kind
  Pages compressed_;
  std::vector<int> tables_;           // numbers in StepSpan::tables
  RopeTables ropes_;                  // of the model, then the same backwards
  std::array<RopeTables, 2> starts_;  // of first tokens of compressed keys: sparse, heavy
  FloatRows query_scale_;             // [dim]: the scale of scores, by a norm
  FloatRows latents_;                 // [max_tokens, q_rank]
  FloatRows queries_;                 // [max_tokens, heads dim]
  FloatRows rows_;                    // [max_tokens, 4 dim]: what is written to the cache
  FloatRows index_queries_;           // [max_tokens, index_heads index_head_dim]
  FloatRows index_weights_;           // [max_tokens, index_heads]
  AlignedBuffer chosen_;              // int32 [max_tokens, top_k]
  FloatRows attended_;                // [max_tokens, heads dim]
  FloatRows grouped_;                 // [max_tokens, groups rank]
};

}  // namespace turbomind
