#include "model/step_context.h"

#include "model/adapters/adapter_table.h"
#include "model/step/image_tokens.h"

namespace turbomind {

void StepContext::linear(const LinearStorage& layer, const LinearInput& input, float* y, bool accumulate) const {
  if (images != nullptr && !layer.for_images.empty()) return images->linear(*this, layer, input, y, accumulate);
  if (adapters == nullptr) {
    ops.linear(layer.view, input, rows, y, accumulate);
    return;
  }
  const float* x = ops.materialize(input, rows, layer.view.in_features);
  ops.linear(layer.view, x, rows, y, accumulate);
  adapters->add(ops, layer, x, y);
}

}  // namespace turbomind
