// Layers that look at pictures: gated cross-attention to their rows, then a gated MLP (Llama 3.2 Vision; Alayrac et
// al., 2022, have the gates). Token rows that look at none pass them by.
//
// A picture's keys and values lie in blocks of the same cache. A block of token rows has room for some layers of
// `block_len` tokens; read as one of fewer layers, it has room for more rows:
//
//   of tokens     32 layers of  64 rows
//   of pictures    8 layers of 256 rows
#pragma once

#include <vector>

#include "model/dense_mlp.h"
#include "model/model_runner.h"
#include "model/spec/model_spec.h"
#include "model/step_context.h"
#include "model/weights.h"

namespace turbomind {

class CrossLayers {
 public:
  // `is_divided`: the model is spread over ranks; what they make is summed.
  CrossLayers(Operators& ops, const ModelSpec& spec, int max_rows, bool is_divided);

  // Rows of pictures that a block holds which, as one of tokens, has this layout.
  int rows_of_block(const CacheLayout& of_tokens) const;
  // The cache of `pool`, whose blocks have this layout as those of tokens.
  void use_cache(const CacheLayout& of_tokens, std::byte* pool);

  // Writes the keys and values of the step's PictureFills. Once a step, as is begin_step().
  void fill(Operators& ops, const StepInput& input, const std::vector<CrossLayerWeights>& layers);
  // Prepares its PictureLooks. False: no row looks at a picture.
  bool begin_step(Operators& ops, const StepInput& input);
  // Adds what layer number `index` makes of the rows of hidden [rows, hidden_size] that look. `mlp`: its scratch.
  void run(Operators& ops, int index, const CrossLayerWeights& layer, DenseMlp& mlp, float* hidden);

 private:
  CacheLayout layout(const CacheLayout& of_tokens) const;
  HeadsView heads(const AlignedBuffer& buffer, int rows, int count, int width, int first) const;
  // x += gate * the sum of branch_ over ranks.
  void add_gated(Operators& ops, float gate);

  ModelSpec spec_;
  int max_rows_;
  bool is_divided_;
  AttentionParams params_;
  int looking_ = 0;  // rows of the step

  Staged picture_rows_;       // float32 [max_rows, hidden_size]
  Staged looking_rows_;       // int32 [max_rows]; their places in the step
  Staged sights_;             // int32 [max_rows]; how many rows of pictures each of them sees
  Staged factors_;            // float32 [max_rows]; that multiply queries
  AlignedBuffer key_values_;  // [max_rows, 2 kv_heads head_dim]
  AlignedBuffer x_;           // [max_rows, hidden_size]; rows that look, gathered
  AlignedBuffer normed_;      // the same
  AlignedBuffer branch_;      // the same
  AlignedBuffer queries_;     // [max_rows, heads head_dim]
  AlignedBuffer attended_;    // the same
};

}  // namespace turbomind
