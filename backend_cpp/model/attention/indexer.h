// The indexer of sparse attention (kernels/sparse_attention.h): which earlier tokens a token attends to.
//
// Its keys are one small vector a token, a cache group of its own. A layer without an indexer takes the choice of the
// last one before that has one.
#pragma once

#include <string>
#include <vector>

#include "kernels/paged_attention.h"
#include "kernels/sparse_attention.h"
#include "model/cache_memory.h"
#include "model/norm_storage.h"
#include "model/spec/model_spec.h"
#include "model/step_context.h"
#include "weights/weight_reader.h"

namespace turbomind {

struct IndexerWeights {
  LinearStorage queries;  // [heads head_dim, q_rank]
  LinearStorage keys;     // [head_dim, hidden]
  NormStorage key_norm;   // LayerNorm
  LinearStorage heads;    // [heads, hidden]; the weights of a token's heads
  WEIGHT_MEMBERS(queries, keys, key_norm, heads)

  static IndexerWeights load(const ModelSpec& spec, const WeightReader& read, const std::string& prefix);
};

class Indexer {
 public:
  // Whether a device has what it takes; without, sequences are to have no more than top_k tokens.
  static bool runs_on(const OperationTable& operations) { return operations.find<SparseAttention>() != nullptr; }
  // Keys of a quantized cache are bfloat16: fewer bits would change which tokens are chosen.
  Indexer(Operators& ops, const ModelSpec& spec, CacheType cache_type, int max_rows);

  CacheGroup cache_group(const StepLimits& limits) const;
  // Its keys are in these pages, the first of which has the spans that were set for table number `first_table`.
  void use_cache(const CacheGroup& group, size_t page_bytes, int first_table, std::byte* pages);

  // Writes the step's index keys and chooses for its rows.
  //   x [rows, hidden]; latents [rows, q_rank], which queries come out of; `table`: the layer's rotation
  void choose(const StepContext& step, int layer, const IndexerWeights& weights, const float* x, const float* latents,
              RopeTable table);

  // paged_attention of what was chosen.
  void run_attention(const StepContext& step, const AttentionParams& params, const HeadsView& queries,
                     float* out) const {
    sparse_attention_(step.ops, {params, spec_.top_k, chosen_.as<int32_t>(), queries, out});
  }

  const CacheLayout& layout() const { return shape_; }  // of a page

 private:
  IndexerSpec spec_;
  OperationFunction<ChooseKeys> choose_;
  OperationFunction<SparseAttention> sparse_attention_;
  CacheLayout shape_;        // of a page
  std::vector<int> layers_;  // that choose
  std::vector<int> pieces_;  // [layers of the model]: number among these
  int first_table_ = 0;
  std::byte* pages_ = nullptr;
  FloatRows queries_;     // [max_rows, heads head_dim]
  FloatRows keys_;        // [max_rows, head_dim]
  FloatRows heads_;       // [max_rows, heads]
  AlignedBuffer chosen_;  // int32 [max_rows, top_k]
};

// The same for blocks of tokens (BlockIndexerSpec), in every layer that attends.
struct BlockIndexerWeights {
  LinearStorage queries;  // [heads head_dim, hidden]
  LinearStorage keys;     // [head_dim, hidden]
  NormStorage query_norm;
  NormStorage key_norm;  // of a block's key
  WEIGHT_MEMBERS(queries, keys, query_norm, key_norm)

  static BlockIndexerWeights load(const ModelSpec& spec, const WeightReader& read, const std::string& prefix);
};

class BlockIndexer {
 public:
  BlockIndexer(Operators& ops, const ModelSpec& spec, CacheType cache_type, int max_rows);

  CacheGroup cache_group(const StepLimits& limits) const;
  void use_cache(const CacheGroup& group, size_t page_bytes, int first_table, std::byte* pages);
  // Writes the step's index keys and chooses for its rows. x [rows, hidden]; `table`: the layer's rotation
  void choose(const StepContext& step, int layer, const BlockIndexerWeights& weights, const float* x, RopeTable table);
  // paged_attention of what was chosen.
  void run_attention(const StepContext& step, const AttentionParams& params, const HeadsView& queries,
                     float* out) const {
    sparse_attention_(step.ops, {params, top_k_, chosen_.as<int32_t>(), queries, out, spec_.block});
  }

  const CacheLayout& layout() const { return shape_; }  // of a page

 private:
  BlockIndexerSpec spec_;
  OperationFunction<WriteBlockKeys> write_;
  OperationFunction<ChooseBlocks> choose_;
  OperationFunction<SparseAttention> sparse_attention_;
  int top_k_;  // tokens that a row has chosen, at most
  CacheLayout shape_;
  std::vector<int> layers_;
  std::vector<int> pieces_;  // [layers of the model]: number among these
  int first_table_ = 0;
  std::byte* pages_ = nullptr;
  AlignedBuffer frequencies_;  // [pairs]
  float rope_scale_ = 1;
  FloatRows queries_;     // [max_rows, heads head_dim]
  FloatRows keys_;        // [max_rows, head_dim]
  AlignedBuffer chosen_;  // int32 [max_rows, top_k_]
};

}  // namespace turbomind
