// Input of a draft head: a token's embedding and the target's hidden state of the token before it, for the logits of
// the next one. To draft further, a head takes its own hidden states in place of the target's.
//
//   MTP (DeepSeek-AI, 2024, arXiv 2412.19437)   x = join [norm(embedding), norm(hidden)], then a layer of the model
//   EAGLE (Li et al., 2024, arXiv 2401.15077)   x = join [embedding, hidden], then layers, the first without its norm
//   EAGLE-3 (Li et al., 2025, arXiv 2503.01840) x = join [three hidden states], or its own; the first layer's attention
//                                               reads [norm(embedding), norm(x)]
//
#pragma once

#include "model/model_runner.h"
#include "model/spec/model_spec.h"
#include "model/step_context.h"
#include "model/weights.h"

namespace turbomind {

class HeadInput {
 public:
  HeadInput(Operators& ops, const ModelSpec& spec, int max_tokens);

  const HeadTraits& traits() const { return traits_; }

  // Uploads a step's inputs alongside its tokens. `states` [rows, size]: what the head made of the rows of
  // the step before.
  void begin_step(Operators& ops, const StepInput& input, const float* states);
  // Whether it does the same in each step: EAGLE-3 joins another model's hidden states, and not its own.
  bool is_repeatable(const StepInput& input) const { return kind_ != HeadKind::kEagle3 || input.continues_states; }
  // Turns the embeddings of a step's tokens, stream [rows, hidden_size], into the first layer's residual stream.
  void run(const StepContext& step, const StepInput& input, const Weights& weights, float* stream);
  // Input of the first layer's attention; null: the stream, through the layer's norm.
  const float* first_input() const;

 private:
  // Puts rows [rows, size_], or what a norm makes of them, into joined_ from number `at` of each row on.
  void put(const StepContext& step, const float* rows, int at);
  // Copies rows [rows, size_] to rows that begin `stride` numbers apart.
  void copy(const StepContext& step, const float* rows, int stride, float* to) const;
  void put_normed(const StepContext& step, const NormStorage& norm, const float* rows, int at);

  HeadKind kind_;
  int size_;  // of its hidden states
  HeadTraits traits_;
  FloatRows alongside_;  // [max_tokens, width]; empty where the host's memory is the device's
  FloatRows joined_;     // [max_tokens, 2 size_]
  FloatRows normed_;     // [max_tokens, size_]
  FloatRows first_;      // [max_tokens, size_], of EAGLE
};

}  // namespace turbomind
