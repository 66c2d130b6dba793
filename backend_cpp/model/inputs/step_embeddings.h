// The rows of images in a step: which of its rows they take the place of, and where these stand.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model_runner.h"
#include "model/spec/model_spec.h"

namespace turbomind {

// Row `row` of a step has row `source` of `rows` in place of its token's embedding.
struct EmbeddedRow {
  int row = 0;
  const EmbeddingRows* rows = nullptr;
  int source = 0;
  bool is_on_grid = false;
};

// Of all spans, in the order of their rows.
std::vector<EmbeddedRow> embedded_rows(const StepInput& input);

// Positions of a span's rows [count, 3]: of text three times the same number, of images their places on the grid.
void fill_grid_positions(const StepSpan& span, int32_t* positions);

// The rows that look at images, divided so that none of the looks has more rows than it sees.
std::vector<ImageLook> divide_looks(const std::vector<ImageLook>& looks);

// What a runner of such a model takes.
ImageTraits image_traits(const ModelSpec& spec);

}  // namespace turbomind
