#include "model/dense_mlp.h"

#include "kernels/activation.h"

namespace turbomind {

DenseMlp::DenseMlp(const ModelSpec& spec, int max_rows)
    : spec_(spec.mlp),
      projected_(float_buffer(max_rows, (spec.mlp.is_gated ? 2 : 1) * spec.intermediate_size)),
      activated_(float_buffer(max_rows, spec.intermediate_size)) {}

void DenseMlp::run(const StepContext& step, const MlpWeights& weights, const float* x, float* y, bool accumulate) {
  auto* projected = projected_.as<float>();
  auto* activated = activated_.as<float>();
  linear(step.pool, step.scratch, weights.up.view, x, step.rows, projected, false);
  const auto act = spec_.is_gated ? activate_gated : activate;
  act(step.pool, spec_.activation, projected, step.rows, weights.down.view.in_features, activated);
  linear(step.pool, step.scratch, weights.down.view, activated, step.rows, y, accumulate);
}

}  // namespace turbomind
