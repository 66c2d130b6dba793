#include "model/dense_mlp.h"

namespace turbomind {

DenseMlp::DenseMlp(Operators& ops, const ModelSpec& spec, int max_rows)
    : spec_(spec.mlp),
      gate_factor_(ops, max_rows, spec.mlp.gate_scale),
      up_factor_(ops, max_rows, spec.mlp.up_scale),
      projected_(float_buffer(ops, max_rows, (spec.mlp.is_gated ? 2 : 1) * spec.intermediate_size)),
      activated_(float_buffer(ops, max_rows, spec.intermediate_size)) {}

void DenseMlp::run(const StepContext& step, const MlpWeights& weights, const LinearInput& x, float* y,
                   bool accumulate) {
  auto* projected = projected_.as<float>();
  auto* activated = activated_.as<float>();
  const GatedMlp mlp{weights.up.view, spec_.activation, weights.down.view, projected, activated};
  const bool has_factors = spec_.gate_scale != 1 || spec_.up_scale != 1;
  const bool is_plain = step.adapters == nullptr && weights.up.for_images.empty();
  if (spec_.is_gated && is_plain && !has_factors && weights.cut == 0) {
    return step.ops.gated_mlp(mlp, x, step.rows, y, accumulate);
  }
  step.linear(weights.up, x, projected, false);
  if (has_factors) {
    const int size = weights.down.view.in_features;
    const auto width = static_cast<size_t>(2 * size);
    gate_factor_.apply(step.ops, {projected, step.rows, width, 1, 0, size});
    up_factor_.apply(step.ops, {projected + size, step.rows, width, 1, 0, size});
  }
  if (weights.cut != 0) {
    const int size = weights.down.view.in_features;
    step.ops.cut_rows(weights.cut, step.rows, size, static_cast<size_t>(2 * size), projected);
  }
  if (spec_.is_gated) return step.linear(weights.down, mlp.between(), y, accumulate);
  const int size = weights.down.view.in_features;
  if (spec_.is_xielu) {
    step.ops.xielu(weights.xielu, projected, step.rows, size, activated);
  } else {
    step.ops.activate(spec_.activation, projected, step.rows, size, activated);
  }
  step.linear(weights.down, activated, y, accumulate);
}

}  // namespace turbomind
