// The indexer of sparse attention (kernels/sparse_attention.h): which earlier tokens a token attends to.
//
// Its keys are one small vector a token, a cache group of its own. A layer without an indexer takes the choice of the
// last one before that has one.
#pragma once

#include <string>
#include <vector>

#include "kernels/compressed_attention.h"
#include "kernels/paged_attention.h"
#include "kernels/sparse_attention.h"
#include "model/attention/rope_tables.h"
#include "model/cache_memory.h"
#include "model/norm_storage.h"
#include "model/spec/model_spec.h"
#include "model/step_context.h"
#include "weights/weight_reader.h"

namespace turbomind {

// Index keys of the layers that have an indexer, and attention to the chosen tokens.
class Indexer {
 public:
  CacheGroup cache_group(const StepLimits& limits) const;
  // Its keys are in these pages, the first of which has the spans that were set for table number `first_table`.
  void use_cache(const CacheGroup& group, size_t page_bytes, int first_table, std::byte* pages);
  const CacheLayout& layout() const { return shape_; }  // of a page

  // paged_attention of what was chosen.
  void run_attention(const StepContext& step, const AttentionParams& params, const HeadsView& queries,
                     float* out) const {
    sparse_attention_(step.ops, {params, top_k_, chosen_.as<int32_t>(), queries, out, block_, is_by_head_});
  }

 protected:
  // Keys of a quantized cache are bfloat16: fewer bits would change which tokens are chosen.
  //   row_size: numbers of a token in the cache, of which the first head_dim are its key
  //   top_k: tokens that a row has chosen, at most; block: tokens that are chosen together
  //   is_by_head: each head of the index has a choice of its own
  //   has_indexer(layer): whether a layer chooses; others have no keys
  template <typename HasIndexer>
  Indexer(Operators& ops, int num_layers, int num_heads, int head_dim, int row_size, int top_k, int block,
          CacheType cache_type, int max_tokens, HasIndexer&& has_indexer, bool is_by_head = false)
      : Indexer(ops, num_heads, head_dim, row_size, top_k, block, is_by_head, max_tokens) {
    for (int layer = 0; layer < num_layers; ++layer) {
      pieces_.push_back(has_indexer(layer) ? static_cast<int>(layers_.size()) : -1);
      if (pieces_.back() >= 0) layers_.push_back(layer);
    }
    const CacheType type = cache_type == CacheType::kFloat32 ? cache_type : CacheType::kBFloat16;
    shape_ = {type, static_cast<int>(layers_.size()), 1, row_size, 0, 0};
  }

  // Where a layer's index keys are.
  AttentionParams key_params(int layer) const;
  HeadsView queries_view(int rows) const {
    const auto dim = static_cast<size_t>(head_dim_);
    return {queries_, rows, num_heads_ * dim, num_heads_, dim, head_dim_};
  }

  FloatRows queries_;     // [max_tokens, heads head_dim]
  FloatRows keys_;        // [max_tokens, row_size]
  AlignedBuffer chosen_;  // int32 [max_tokens, top_k], or [max_tokens, heads, top_k]

 private:
  Indexer(Operators& ops, int num_heads, int head_dim, int row_size, int top_k, int block, bool is_by_head,
          int max_tokens);

  OperationFunction<SparseAttention> sparse_attention_;
  int num_heads_;
  int head_dim_;
  int top_k_;
  int block_;
  bool is_by_head_;
  CacheLayout shape_;        // of a page
  std::vector<int> layers_;  // that choose
  std::vector<int> pieces_;  // [layers of the model]: number among these, or -1
  int first_table_ = 0;
  std::byte* pages_ = nullptr;
};

struct TokenIndexerWeights {
  LinearStorage queries;  // [heads head_dim, q_rank]
  LinearStorage keys;     // [head_dim, hidden]; with pools [2 head_dim, hidden], keys and gates
  NormStorage key_norm;   // LayerNorm
  LinearStorage heads;    // [heads, hidden]; the weights of a token's heads
  LinearStorage biases;   // of gates [pool, head_dim], or empty
  WEIGHT_MEMBERS(queries, keys, key_norm, heads, biases)

  static TokenIndexerWeights load(const ModelSpec& spec, const WeightReader& read, const std::string& prefix);
};

// Chooses tokens one by one, or pools of them (IndexerSpec).
class TokenIndexer final : public Indexer {
 public:
  // Whether a device has what it takes; without, sequences are to have no more than top_k tokens.
  static bool runs_on(const OperationTable& operations) { return operations.find<SparseAttention>() != nullptr; }
  TokenIndexer(Operators& ops, const ModelSpec& spec, CacheType cache_type, int max_tokens);

  // Writes the step's index keys and chooses for its rows.
  //   x [rows, hidden]; latents [rows, q_rank], which queries come out of; `table`: the layer's rotation
  void choose(const StepContext& step, int layer, const TokenIndexerWeights& weights, const float* x,
              const float* latents, RopeTable table);

 private:
  IndexerSpec spec_;
  OperationFunction<ChooseKeys> choose_;
  // Null without pools, whose key lies in the place of their last token's.
  OperationFunction<WriteCacheRows> write_;
  OperationFunction<CompressKeys> compress_;
  OperationFunction<ChooseCompressedKeys> choose_pools_;
  FloatRows heads_;  // [max_tokens, heads]
};

struct BlockIndexerWeights {
  LinearStorage queries;  // [heads head_dim, hidden]
  LinearStorage keys;     // [head_dim, hidden]
  NormStorage query_norm;
  NormStorage key_norm;  // of a block's key
  WEIGHT_MEMBERS(queries, keys, query_norm, key_norm)

  static BlockIndexerWeights load(const ModelSpec& spec, const WeightReader& read, const std::string& prefix);
};

// Chooses blocks of tokens (BlockIndexerSpec).
class BlockIndexer final : public Indexer {
 public:
  BlockIndexer(Operators& ops, const ModelSpec& spec, CacheType cache_type, int max_tokens);

  void begin_step(Operators& ops, const StepInput& input) {
    if (write_) starts_.stage(ops, input);
  }
  void fill_tables(const StepContext& step) {
    if (write_) starts_.fill(step.ops, step.rows);
  }
  // Writes the step's index keys and chooses for its rows. x [rows, hidden]; `table`: the layer's rotation
  void choose(const StepContext& step, int layer, const BlockIndexerWeights& weights, const float* x, RopeTable table);

 private:
  BlockIndexerSpec spec_;
  // Null where blocks count by their best token.
  OperationFunction<WriteCacheRows> write_;
  OperationFunction<CompressKeys> compress_;  // a block's key lies in the place of its last token's
  OperationFunction<ChooseCompressedKeys> choose_;
  OperationFunction<ChooseBestBlocks> choose_best_;  // null elsewhere
  RopeTables starts_;                                // of the first tokens of blocks, by the rows of their last
};

}  // namespace turbomind
