#include "model/dense_mlp.h"

namespace turbomind {

DenseMlp::DenseMlp(Operators& ops, const ModelSpec& spec, int max_rows)
    : spec_(spec.mlp),
      projected_(float_buffer(ops, max_rows, (spec.mlp.is_gated ? 2 : 1) * spec.intermediate_size)),
      activated_(float_buffer(ops, max_rows, spec.intermediate_size)) {}

void DenseMlp::run(const StepContext& step, const MlpWeights& weights, const LinearInput& x, float* y,
                   bool accumulate) {
  auto* projected = projected_.as<float>();
  auto* activated = activated_.as<float>();
  step.linear(weights.up, x, projected, false);
  if (spec_.is_gated) {
    step.linear(weights.down, LinearInput::gated(spec_.activation, projected, activated), y, accumulate);
  } else {
    step.ops.activate(spec_.activation, projected, step.rows, weights.down.view.in_features, activated);
    step.linear(weights.down, activated, y, accumulate);
  }
}

}  // namespace turbomind
