// Image rows with weights of their own (ImagesSpec::own_attention, own_mlp, low_rank).
//
// A step's rows are split into those of images and the others. Linear layers run on each group apart, in the order of
// its rows, so that what a row gives does not depend on which other rows there are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/operators.h"
#include "model/model_runner.h"
#include "model/spec/model_spec.h"
#include "model/step_context.h"
#include "weights/weight_reader.h"

namespace turbomind {

class ImageTokens {
 public:
  ImageTokens(Operators& ops, const ModelSpec& spec, int max_tokens);

  // Prepares a step of which `computed` rows are computed; false: no row takes the weights of images.
  bool begin_step(Operators& ops, const StepInput& input, int computed);
  // As StepContext::linear, of a layer that has weights for images.
  void linear(const StepContext& step, const LinearStorage& layer, const LinearInput& input, float* y,
              bool accumulate) const;

 private:
  // One group of rows, numbered by `rows`, of `weight`.
  void run_group(const StepContext& step, const LinearWeight& weight, const int32_t* rows, int count, const float* x,
                 float* y, bool accumulate) const;
  // y += what pairs of low-rank matrices make of the rows of images.
  void add_low_rank(const StepContext& step, const LinearStorage& layer, const float* x, float* y) const;

  bool on_grid_only_;
  Staged rows_;  // int32 [max_tokens], those of images first
  int images_ = 0;
  int others_ = 0;
  FloatRows inputs_;   // float32 [max_tokens, the widest input]
  FloatRows outputs_;  // float32 [max_tokens, the widest output]
  FloatRows shrunk_;   // float32 [max_tokens, low_rank]
  FloatRows part_;     // float32 [max_tokens, the widest output], with low_rank
};

// The rows of images in a step: which of its rows they take the place of, and where these stand.

// Row `row` of a step has row `source` of `rows` in place of its token's embedding.
struct EmbeddedToken {
  int row = 0;
  const EmbeddingRows* rows = nullptr;
  int source = 0;
  bool is_on_grid = false;
};

// Of all spans, in the order of their rows.
std::vector<EmbeddedToken> embedded_tokens(const StepInput& input);

// Positions [count, 3] of a sequence's tokens from `first` on: of text three times the same number, of images their
// places on the grid.
void fill_grid_positions(std::span<const EmbeddingRange> ranges, int first, int count, int32_t* positions);

// The rows that look at images, divided so that none of the looks has more rows than it sees.
std::vector<CrossAttentionSpan> split_cross_spans(const std::vector<CrossAttentionSpan>& cross_spans);

// Reads what a linear layer has for rows of images: weights, or low-rank matrices for each of the `parts` of its
// outputs.
void read_for_images(const ModelSpec& spec, const WeightReader& read, LinearStorage& linear, bool has_image_weights,
                     bool bias, const std::vector<Slice>& parts);

// Images of a step, as a runner of such a model takes them.
ImageTraits image_traits(const ModelSpec& spec);

}  // namespace turbomind
