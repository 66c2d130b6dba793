#include "model/step/image_tokens.h"

#include <algorithm>
#include <string>
#include <vector>

namespace turbomind {

namespace {

int widest_input(const ModelSpec& spec) {
  const HeadSizes sizes = head_sizes(spec, 0);
  return std::max({spec.hidden_size, spec.intermediate_size, sizes.heads * sizes.value_dim});
}

int max_output(const ModelSpec& spec) {
  const HeadSizes sizes = head_sizes(spec, 0);
  const int values = (sizes.heads + sizes.kv_heads) * sizes.value_dim;
  const int qkv = (sizes.heads + sizes.kv_heads) * sizes.head_dim + values;
  return std::max({spec.hidden_size, (spec.mlp.is_gated ? 2 : 1) * spec.intermediate_size, qkv});
}

}  // namespace

ImageTokens::ImageTokens(Operators& ops, const ModelSpec& spec, int max_tokens)
    : on_grid_only_(spec.images->own_on_grid),
      rows_(ops, static_cast<size_t>(max_tokens) * sizeof(int32_t)),
      inputs_(ops, max_tokens, widest_input(spec)),
      outputs_(ops, max_tokens, max_output(spec)),
      shrunk_(ops, max_tokens, spec.images->low_rank),
      part_(ops, spec.images->low_rank > 0 ? max_tokens : 0, max_output(spec)) {}

bool ImageTokens::begin_step(Operators& ops, const StepInput& input, int computed) {
  std::vector<bool> is_image(static_cast<size_t>(computed), false);
  for (const EmbeddedToken& row : embedded_tokens(input)) {
    if (row.is_on_grid || !on_grid_only_) is_image[static_cast<size_t>(row.row)] = true;
  }
  images_ = static_cast<int>(std::ranges::count(is_image, true));
  others_ = computed - images_;
  if (images_ == 0) return false;
  int32_t* image = rows_.host<int32_t>();
  int32_t* other = image + images_;
  for (int row = 0; row < computed; ++row) *(is_image[static_cast<size_t>(row)] ? image++ : other++) = row;
  rows_.upload(ops, static_cast<size_t>(computed) * sizeof(int32_t));
  return true;
}

void ImageTokens::linear(const StepContext& step, const LinearStorage& layer, const LinearInput& input, float* y,
                         bool accumulate) const {
  const float* x = step.ops.materialize(input, step.rows, layer.view.in_features);
  if (layer.for_images.size() > 1) {
    step.ops.linear(layer.view, x, step.rows, y, accumulate);
    return add_low_rank(step, layer, x, y);
  }
  const auto* rows = rows_.device<int32_t>();
  run_group(step, layer.for_images.front().view, rows, images_, x, y, accumulate);
  run_group(step, layer.view, rows + images_, others_, x, y, accumulate);
}

void ImageTokens::run_group(const StepContext& step, const LinearWeight& weight, const int32_t* rows, int count,
                            const float* x, float* y, bool accumulate) const {
  if (count == 0) return;
  step.ops.gather_rows(x, rows, count, weight.in_features, inputs_);
  if (accumulate) step.ops.gather_rows(y, rows, count, weight.out_features, outputs_);
  step.ops.linear(weight, inputs_, count, outputs_, accumulate);
  step.ops.scatter_rows(outputs_, rows, count, weight.out_features, y, false);
}

void ImageTokens::add_low_rank(const StepContext& step, const LinearStorage& layer, const float* x, float* y) const {
  const auto width = static_cast<size_t>(layer.view.out_features);
  step.ops.gather_rows(x, rows_.device<int32_t>(), images_, layer.view.in_features, inputs_);
  size_t column = 0;
  for (size_t pair = 0; pair < layer.for_images.size(); pair += 2) {
    const LinearWeight& up = layer.for_images[pair + 1].view;
    step.ops.linear(layer.for_images[pair].view, inputs_, images_, shrunk_, false);
    step.ops.linear(up, shrunk_, images_, part_, false);
    const auto size = static_cast<size_t>(up.out_features);
    step.ops.copy_heads({part_, images_, size, 1, 0, up.out_features},
                        {outputs_ + column, images_, width, 1, 0, up.out_features});
    column += size;
  }
  step.ops.scatter_rows(outputs_, rows_.device<int32_t>(), images_, layer.view.out_features, y, true);
}

std::vector<EmbeddedToken> embedded_tokens(const StepInput& input) {
  std::vector<EmbeddedToken> found;
  for (const StepSpan& span : input.spans) {
    const int end = span.first_position + span.count;
    for (const EmbeddingRange& range : span.embedded()) {
      for (int at = std::max(span.first_position, range.begin); at < std::min(end, range.end()); ++at) {
        found.push_back(
            {span.first_token + at - span.first_position, range.rows.get(), at - range.begin, range.grid.is_given()});
      }
    }
  }
  return found;
}

void fill_grid_positions(std::span<const EmbeddingRange> ranges, int first, int count, int32_t* positions) {
  int shift = 0;
  auto range = ranges.begin();
  for (int token = first; token < first + count; ++token, positions += 3) {
    while (range != ranges.end() && range->end() <= token) shift += (range++)->shift();
    const bool is_on_grid = range != ranges.end() && token >= range->begin && range->grid.is_given();
    if (!is_on_grid) {
      std::fill_n(positions, 3, token + shift);
      continue;
    }
    const ImageGrid& grid = range->grid;
    const int index = token - range->begin;
    positions[0] = range->begin + shift + grid.position_of_frame(index / (grid.rows * grid.columns));
    positions[1] = range->begin + shift + index / grid.columns % grid.rows;
    positions[2] = range->begin + shift + index % grid.columns;
  }
}

std::vector<CrossAttentionSpan> split_cross_spans(const std::vector<CrossAttentionSpan>& cross_spans) {
  std::vector<CrossAttentionSpan> divided;
  for (const CrossAttentionSpan& span : cross_spans) {
    for (int done = 0; done < span.count; done += span.seen) {
      divided.push_back({span.first_token + done, std::min(span.count - done, span.seen), span.seen, span.tables});
    }
  }
  return divided;
}

void read_for_images(const ModelSpec& spec, const WeightReader& read, LinearStorage& linear, bool has_image_weights,
                     bool bias, const std::vector<Slice>& parts) {
  if (!spec.images) return;
  const std::string name = linear.name + ".images";
  if (has_image_weights) linear.for_images.push_back(read.linear(name, linear.outputs, linear.inputs, bias));
  if (spec.images->low_rank == 0) return;
  for (size_t part = 0; part < parts.size(); ++part) {
    const std::string prefix = name + "." + std::to_string(part) + ".";
    const auto matrix = [&](const char* end, const Slice& outputs, const Slice& inputs) {
      linear.for_images.push_back(read.matrix(prefix + end + ".weight", outputs, inputs, read.options().dtype));
    };
    matrix("down", spec.images->low_rank, linear.inputs);
    matrix("up", parts[part], spec.images->low_rank);
  }
}

ImageTraits image_traits(const ModelSpec& spec) {
  if (!spec.images) return {};
  const bool has_grid =
      std::any_of(spec.ropes.begin(), spec.ropes.end(), [](const RopeSpec& rope) { return !rope.axes.empty(); });
  return {spec.hidden_size * (1 + spec.images->deepstack_layers), has_grid, spec.images->whole_rows > 0,
          !spec.images->cross_layers.empty(), spec.images->own_on_grid};
}

}  // namespace turbomind
