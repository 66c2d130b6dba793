#pragma once

#include "kernels/streams.h"
#include "model/spec/model_spec.h"
#include "model/step_context.h"
#include "model/weights.h"

namespace turbomind {

// The MLP half of a layer: down(act(gate(x)) * up(x)), or down(act(up(x))).
class DenseMlp {
 public:
  DenseMlp(Operators& ops, const ModelSpec& spec, int max_tokens);

  // x, y [rows, hidden], not overlapping but that y may be what x is made of; with accumulate, y += instead of y =
  void run(const StepContext& step, const MlpWeights& weights, const LinearInput& x, float* y, bool accumulate);

 private:
  MlpSpec spec_;
  OperationFunction<ActivationSparsity> activation_sparsity_;  // null where no layer needs it
  OperationFunction<Xielu> xielu_;                             // likewise
  FloatRows projected_;  // [max_tokens, intermediate_size], or twice that with a gate
  FloatRows activated_;  // [max_tokens, intermediate_size]
};

// The MLP half of a layer with experts: a router, the experts it chooses from, and the one every token goes to.
class ExpertMlp {
 public:
  ExpertMlp(Operators& ops, const ModelSpec& spec, int max_tokens);

  // tokens [rows]; x, stream, y [rows, hidden], not overlapping; with accumulate, y += instead of y =. `stream`: the
  // residual stream, which some routers read.
  void run(const StepContext& step, const ExpertWeights& weights, int layer, const int32_t* tokens, const float* x,
           const float* stream, float* y, bool accumulate);

 private:
  MoeSpec moe_;
  Activation activation_;
  FloatRows router_rows_;       // float32 [max_tokens, hidden]: what the router reads, where it has a norm
  FloatRows logits_;            // float32 [max_tokens, num_experts]
  AlignedBuffer chosen_;        // int32 [max_tokens, experts_per_token]
  FloatRows shares_;            // float32 [max_tokens, experts_per_token]
  FloatRows scaled_;            // float32 [max_tokens, hidden]: inputs times shares, where the router scales these
  FloatRows ones_;              // float32 [max_tokens], then
  FloatRows latent_;            // float32 [max_tokens, latent_size]: what routed experts read, where that is not x ...
  FloatRows latent_sum_;        // ... and their sum
  AlignedBuffer first_expert_;  // int32 [max_tokens], zeros: every row goes to the shared expert ...
  FloatRows shared_gate_;       // float32 [max_tokens]: ... with this weight
};

}  // namespace turbomind
