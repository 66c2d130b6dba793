// Weight storage of a linear layer.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "kernels/packed_weight.h"
#include "weights/slice.h"

namespace turbomind {

// Owns what `view` points to.
struct LinearStorage {
  AlignedBuffer data;
  AlignedBuffer scales;
  AlignedBuffer zeros;
  AlignedBuffer mins;
  AlignedBuffer input_order;
  AlignedBuffer block_scales;
  AlignedBuffer output_scales;
  AlignedBuffer bias;
  LinearWeight view;

  // Engine tensor that it holds; without a name where it was not read by WeightReader::linear.
  std::string name;
  Slice outputs = 0;
  Slice inputs = 0;
  // Weights for rows of images (model/step/image_tokens.h). Empty: the same as others; one: that in place of this; else
  // pairs of low-rank matrices, down and up, whose products are added, a pair for each part of the outputs.
  std::vector<LinearStorage> for_images;
  int adapted_layer = -1;  // its number among those that adapters add to (model/weights.h); -1: none do

  // Makes the view point at all of the above, for a weight packed in this shape.
  void set_view(const PackedShape& shape) {
    view = {data.as<void>(), shape.format(), shape.out_features, shape.in_features, bias.as<float>(), shape.group};
    view.scale_groups = shape.scale_groups;
    set_pointers();
  }
  void set_pointers() {
    view.data = data.as<void>();
    view.bias = bias.as<float>();
    view.scales = scales.as<half>();
    view.zeros = zeros.as<uint8_t>();
    view.mins = mins.as<half>();
    view.input_order = input_order.as<int32_t>();
    view.block_scales = block_scales.as<float>();
    view.output_scales = output_scales.as<float>();
  }
};

// Runs body(index) for each index; here or, for work that is not inside a parallel loop already, on a pool.
using Loop = std::function<void(int count, const std::function<void(int)>& body)>;
inline void in_order(int count, const std::function<void(int)>& body) {
  for (int index = 0; index < count; ++index) body(index);
}
inline void skip_all(int, const std::function<void(int)>&) {}

}  // namespace turbomind
