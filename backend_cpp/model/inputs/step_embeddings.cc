#include "model/inputs/step_embeddings.h"

#include <algorithm>

namespace turbomind {

std::vector<EmbeddedRow> embedded_rows(const StepInput& input) {
  std::vector<EmbeddedRow> found;
  for (const StepSpan& span : input.spans) {
    const int end = span.first_position + span.count;
    for (const EmbeddingRange& range : span.embeddings) {
      for (int at = std::max(span.first_position, range.begin); at < std::min(end, range.end()); ++at) {
        found.push_back(
            {span.first_row + at - span.first_position, range.rows.get(), at - range.begin, range.grid.is_given()});
      }
    }
  }
  return found;
}

void fill_grid_positions(const StepSpan& span, int32_t* positions) {
  int shift = span.position_shift;
  auto range = span.embeddings.begin();
  for (int token = span.first_position; token < span.first_position + span.count; ++token, positions += 3) {
    while (range != span.embeddings.end() && range->end() <= token) shift += (range++)->shift();
    const bool is_on_grid = range != span.embeddings.end() && token >= range->begin && range->grid.is_given();
    if (!is_on_grid) {
      std::fill_n(positions, 3, token + shift);
      continue;
    }
    const ImageGrid& grid = range->grid;
    const int place = token - range->begin;
    positions[0] = range->begin + shift + grid.position_of_frame(place / (grid.rows * grid.columns));
    positions[1] = range->begin + shift + place / grid.columns % grid.rows;
    positions[2] = range->begin + shift + place % grid.columns;
  }
}

std::vector<ImageLook> divide_looks(const std::vector<ImageLook>& looks) {
  std::vector<ImageLook> divided;
  for (const ImageLook& look : looks) {
    for (int done = 0; done < look.count; done += look.seen) {
      divided.push_back({look.first_row + done, std::min(look.count - done, look.seen), look.seen, look.tables});
    }
  }
  return divided;
}

ImageTraits image_traits(const ModelSpec& spec) {
  if (!spec.images) return {};
  const bool has_grid =
      std::any_of(spec.ropes.begin(), spec.ropes.end(), [](const RopeSpec& rope) { return !rope.axes.empty(); });
  return {spec.hidden_size * (1 + spec.images->deepstack_layers), has_grid, spec.images->whole_rows > 0,
          !spec.images->cross_layers.empty(), spec.images->own_on_grid};
}

}  // namespace turbomind
