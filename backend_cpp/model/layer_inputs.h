// Per-layer embeddings (Gemma 3n, 4): computed once a step, added after a layer's MLP through a gate.
#pragma once

#include "model/spec/model_spec.h"
#include "model/step_context.h"
#include "model/weights.h"

namespace turbomind {

class LayerInputs {
 public:
  LayerInputs(Operators& ops, const ModelSpec& spec, int max_tokens);

  // Makes the inputs of all layers. tokens [rows], hidden [rows, hidden_size], the first layer's.
  void make(const StepContext& step, const InputTableWeights& weights, const int32_t* tokens, const float* hidden);
  // branch [rows, hidden_size] = what layer number `layer` makes of its input and of hidden.
  void run(const StepContext& step, int layer, const LayerInputWeights& weights, const float* hidden, float* branch);

 private:
  int size_;
  int width_;  // of the inputs of all layers
  int hidden_size_;
  Activation activation_;
  FloatRows inputs_;    // [max_tokens, layers, size]
  FloatRows embedded_;  // the same
  FloatRows gates_;     // [max_tokens, size]
};

}  // namespace turbomind
