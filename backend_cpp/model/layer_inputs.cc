#include "model/layer_inputs.h"

#include <cmath>

namespace turbomind {

LayerInputs::LayerInputs(Operators& ops, const ModelSpec& spec, int max_rows)
    : size_(spec.layer_input->size),
      width_(spec.num_layers * size_),
      hidden_size_(spec.hidden_size),
      activation_(spec.mlp.activation),
      inputs_(float_buffer(ops, max_rows, width_)),
      embedded_(float_buffer(ops, max_rows, width_)),
      gates_(float_buffer(ops, max_rows, size_)) {}

void LayerInputs::make(const StepContext& step, const InputTableWeights& weights, const int32_t* tokens,
                       const float* hidden) {
  Operators& ops = step.ops;
  auto* inputs = inputs_.as<float>();
  auto* embedded = embedded_.as<float>();
  const auto size = static_cast<size_t>(size_);
  const auto width = static_cast<size_t>(width_);
  ops.linear(weights.project.view, hidden, step.rows, inputs, false);
  ops.scale_and_cap(1 / std::sqrt(static_cast<float>(hidden_size_)), 0, step.rows, width_, inputs);
  ops.norm_heads(weights.norm.view, {inputs, step.rows, width, width_ / size_, size, size_});
  ops.embed(weights.table.view, tokens, step.rows, std::sqrt(static_cast<float>(size_)), embedded);
  ops.add_scaled(1, embedded, step.rows, width_, inputs);
  ops.scale_and_cap(1 / std::sqrt(2.0f), 0, step.rows, width_, inputs);
}

void LayerInputs::run(const StepContext& step, int layer, const LayerInputWeights& weights, const float* hidden,
                      float* branch) {
  Operators& ops = step.ops;
  auto* gates = gates_.as<float>();
  ops.linear(weights.gate.view, hidden, step.rows, gates, false);
  const HeadsView gate = rows_view(gates, step.rows, size_);
  ops.activate(activation_, gate, rows_view(inputs_.as<float>() + layer * size_, step.rows, size_, width_), gate);
  ops.linear(weights.project.view, gates, step.rows, branch, false);
  ops.norm(weights.norm.view, branch, step.rows, hidden_size_, branch);
}

}  // namespace turbomind
