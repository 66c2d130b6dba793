// Cross-attention layers: gated cross-attention to images, then a gated MLP (Llama 3.2 Vision; Alayrac et al., 2022).
//
// An image's keys and values are a cache group of their own, whose blocks hold rows of images. A block is as long as
// makes the most of a page, since these are fewer layers than those of tokens:
//
//   of tokens     32 layers of  64 rows
//   of images      8 layers of 256 rows
#pragma once

#include <vector>

#include "model/cache_memory.h"
#include "model/mlp.h"
#include "model/spec/model_spec.h"
#include "model/step_context.h"
#include "model/weights.h"

namespace turbomind {

class CrossLayers final : public LayerMemory {
 public:
  // `is_divided`: the model is spread over ranks; what they make is summed.
  CrossLayers(Operators& ops, const ModelSpec& spec, CacheType cache_type, int max_tokens, bool is_divided);

  std::vector<CacheGroup> cache_groups(const StepLimits& limits) const override;
  size_t use_cache(Operators& ops, const CachePlan& plan, size_t first_group, std::byte* pages) override;

  // Writes the keys and values of the step's ImageFills. Once a step, as is begin_step().
  void write(Operators& ops, const StepInput& input, const std::vector<CrossLayerWeights>& layers);
  void begin_step(Operators& ops, const StepInput& input) override;
  bool has_spans() const { return row_count_ > 0; }  // a row of the step, at an image
  // Adds what layer number `index` makes of the rows of hidden [rows, hidden_size] that look. `mlp`: its scratch.
  void run(Operators& ops, int index, const CrossLayerWeights& layer, DenseMlp& mlp, float* hidden);

 private:
  // The spans of a step, with the pages of each table.
  void set_spans(Operators& ops, SpanUse use, const std::vector<AttentionSpan>& spans,
                 const std::vector<const PageTables*>& tables) const;
  // Of layer number `index`.
  void choose_layer(AttentionParams& params, int index) const;
  HeadsView heads(const AlignedBuffer& buffer, int rows, int count, int width, int first) const;
  // x += gate * the sum of branch_ over ranks.
  void add_gated(Operators& ops, float gate);

  ModelSpec spec_;
  int max_tokens_;
  bool is_divided_;
  CacheLayout shape_;  // of one layer, without a block's length
  int table_count_ = 0;
  AttentionParams params_;
  int row_count_ = 0;  // rows of the step

  Staged image_tokens_;         // float32 [max_tokens, hidden_size]
  Staged span_tokens_;          // int32 [max_tokens]; their places in the step
  Staged kv_lens_;              // int32 [max_tokens]; how many rows of images each of them sees
  FloatRows key_values_;        // [max_tokens, 2 kv_heads head_dim]
  FloatRows x_;                 // [max_tokens, hidden_size]; rows that look, gathered
  FloatRows normed_;            // the same
  FloatRows branch_;            // the same
  FloatRows queries_;           // [max_tokens, heads head_dim]
  FloatRows attention_output_;  // the same
};

}  // namespace turbomind
