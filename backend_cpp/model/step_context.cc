#include "model/step_context.h"

#include "model/adapters/adapter_table.h"

namespace turbomind {

void StepContext::linear(const LinearStorage& layer, const float* x, float* y, bool accumulate) const {
  ops.linear(layer.view, x, rows, y, accumulate);
  if (adapters != nullptr) adapters->add(ops, layer, x, y);
}

}  // namespace turbomind
