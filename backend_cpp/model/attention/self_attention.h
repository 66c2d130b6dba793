// The attention half of a layer: plain key and value heads, or latent attention, which caches less.
#pragma once

#include <optional>
#include <vector>

#include "kernels/heads_view.h"
#include "kernels/paged_attention.h"
#include "model/attention/latent_attention.h"
#include "model/attention/rope_tables.h"
#include "model/model_runner.h"
#include "model/spec/model_spec.h"
#include "model/step_context.h"
#include "model/weights.h"

namespace turbomind {

class SelfAttention {
 public:
  SelfAttention(Operators& ops, const ModelSpec& spec, CacheType cache_type, int max_rows);

  CacheLayout layout(int block_len) const;
  void allocate_cache(Operators& ops, const CacheSize& size);
  std::byte* cache() const { return cache_.as<std::byte>(); }
  void move_blocks(Operators& ops, const std::vector<BlockMove>& moves);
  int cache_variant(int prompt_len) const { return ropes_.variant(prompt_len); }
  // Prepares what all layers share: positions, cache blocks; then, on the device, rotations.
  void begin_step(Operators& ops, const StepInput& input);
  void fill_tables(const StepContext& step) { ropes_.fill(step.ops, step.rows); }
  // x, y [rows, hidden], not overlapping; with accumulate, y += instead of y =. Writes the rows' keys and values.
  void run(const StepContext& step, int layer, const AttentionWeights& weights, const LinearInput& x, float* y,
           bool accumulate);

 private:
  // What attention works on; keys and values may overlap.
  struct Heads {
    HeadsView queries;
    HeadsView keys;
    HeadsView values;
  };
  Heads heads(int rows) const;
  void project(const StepContext& step, const AttentionWeights& weights, const LinearInput& x, const Heads& heads);
  void fill_query_factors(Operators& ops, const StepInput& input);
  void fill_sights(Operators& ops, const StepInput& input);

  ModelSpec spec_;
  std::optional<LatentAttention> latent_;
  CacheLayout shape_;  // without a block's length
  AlignedBuffer cache_;
  AlignedBuffer host_cache_;
  CacheLayout layout_;
  RopeTables ropes_;
  AttentionParams params_;  // of the step
  int row_width_;
  AlignedBuffer qkv_;           // [max_rows, row_width_]: queries, keys and, unless a part of the keys, values
  AlignedBuffer attended_;      // [max_rows, heads value_dim]
  AlignedBuffer expanded_;      // [max_rows, heads mla.value_dim], of latent attention
  AlignedBuffer alibi_slopes_;  // [heads], or empty
  Staged query_factors_;        // float32 [max_rows]
  Staged sights_;               // int32 [max_rows], where pictures see ahead
};

}  // namespace turbomind
