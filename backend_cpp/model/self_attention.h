// The attention half of a layer, with plain key and value heads.
#pragma once

#include <vector>

#include "kernels/paged_attention.h"
#include "model/model_runner.h"
#include "model/model_spec.h"
#include "model/rope_tables.h"
#include "model/step_context.h"
#include "model/weights.h"

namespace turbomind {

class SelfAttention {
 public:
  SelfAttention(const ModelSpec& spec, CacheType cache_type, int max_rows);

  CacheLayout layout(int block_len) const;
  void allocate_cache(int block_count, int block_len);
  int cache_variant(int prompt_len) const { return ropes_.variant(prompt_len); }
  // Prepares what all layers share: positions, rotation, cache blocks.
  void begin_step(const StepInput& input);
  // x, y [rows, hidden], not overlapping; with accumulate, y += instead of y =. Writes the rows' keys and values.
  void run(const StepContext& step, int layer, const AttentionWeights& weights, const float* x, float* y,
           bool accumulate);

 private:
  void fill_query_factors(const StepInput& input);

  ModelSpec spec_;
  CacheType cache_type_;
  AlignedBuffer cache_;
  CacheLayout layout_;
  RopeTables ropes_;
  std::vector<AttentionSpan> spans_;
  AttentionParams params_;       // of the step
  AlignedBuffer qkv_;            // [max_rows, (heads + 2 kv_heads) head_dim]
  AlignedBuffer attended_;       // [max_rows, heads head_dim]
  AlignedBuffer query_factors_;  // [max_rows]
  AlignedBuffer workspace_;      // of attention; grows
};

}  // namespace turbomind
