#include "model/layer_inputs.h"

#include <cmath>

namespace turbomind {

LayerInputs::LayerInputs(Operators& ops, const ModelSpec& spec, int max_tokens)
    : size_(spec.layer_input->size),
      width_(spec.num_layers * size_),
      hidden_size_(spec.hidden_size),
      activation_(spec.mlp.activation),
      inputs_(ops, max_tokens, width_),
      embedded_(ops, max_tokens, width_),
      gates_(ops, max_tokens, size_) {}

void LayerInputs::make(const StepContext& step, const InputTableWeights& weights, const int32_t* tokens,
                       const float* hidden) {
  Operators& ops = step.ops;
  const auto size = static_cast<size_t>(size_);
  const auto width = static_cast<size_t>(width_);
  ops.linear(weights.project.view, hidden, step.rows, inputs_, false);
  ops.scale_softcap(1 / std::sqrt(static_cast<float>(hidden_size_)), 0, step.rows, width_, inputs_);
  ops.norm_heads(weights.norm.view, {inputs_, step.rows, width, width_ / size_, size, size_});
  ops.embed(weights.table.view, tokens, step.rows, std::sqrt(static_cast<float>(size_)), embedded_);
  ops.add_scaled(1, embedded_, step.rows, width_, inputs_);
  ops.scale_softcap(1 / std::sqrt(2.0f), 0, step.rows, width_, inputs_);
}

void LayerInputs::run(const StepContext& step, int layer, const LayerInputWeights& weights, const float* hidden,
                      float* branch) {
  Operators& ops = step.ops;
  ops.linear(weights.gate.view, hidden, step.rows, gates_, false);
  const HeadsView gate = rows_view(gates_, step.rows, size_);
  ops.activate(activation_, gate, rows_view(inputs_ + layer * size_, step.rows, size_, width_), gate);
  ops.linear(weights.project.view, gates_, step.rows, branch, false);
  ops.norm(weights.norm.view, branch, step.rows, hidden_size_, branch);
}

}  // namespace turbomind
