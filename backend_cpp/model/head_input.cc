#include "model/head_input.h"

namespace turbomind {

HeadInput::HeadInput(Operators& ops, const ModelSpec& spec, int max_tokens)
    : kind_(spec.head->kind),
      size_(spec.hidden_size),
      traits_{width_of(*spec.head), spec.head->target_layers, spec.head->tokens},
      alongside_(ops, ops.shares_host_memory() ? 0 : max_tokens, std::max(size_, traits_.width)),
      joined_(ops, max_tokens, 2 * size_),
      normed_(ops, max_tokens, size_),
      first_(ops, kind_ == HeadKind::kEagle ? max_tokens : 0, size_) {}

void HeadInput::begin_step(Operators& ops, const StepInput& input, const float* states) {
  if (alongside_.size() == 0) return;
  if (input.alongside.empty() && input.continues_states) {
    const size_t bytes = input.tokens.size() * static_cast<size_t>(size_) * sizeof(float);
    return ops.copy(states, bytes, alongside_.as<void>());
  }
  ops.upload(input.alongside.data(), input.alongside.size() * sizeof(float), alongside_.as<void>());
}

void HeadInput::run(const StepContext& step, const StepInput& input, const Weights& weights, float* stream) {
  const HeadWeights& head = *weights.head;
  const float* alongside = alongside_.size() > 0 ? alongside_ : input.alongside.data();
  if (kind_ == HeadKind::kEagle3) {
    put_normed(step, weights.layers.front().attention_norm, stream, 0);
    if (input.continues_states) {
      copy(step, alongside, size_, stream);
    } else {
      step.linear(head.join, alongside, stream, false);
    }
    put_normed(step, head.hidden_norm, stream, size_);
    return;
  }
  if (kind_ == HeadKind::kMtp) {
    put_normed(step, head.embedding_norm, stream, 0);
    put_normed(step, head.hidden_norm, alongside, size_);
  } else {
    put(step, stream, 0);
    put(step, alongside, size_);
  }
  step.linear(head.join, joined_, stream, false);
  if (kind_ == HeadKind::kEagle) copy(step, stream, size_, first_);
}

const float* HeadInput::first_input() const {
  if (kind_ == HeadKind::kMtp) return nullptr;
  return kind_ == HeadKind::kEagle ? first_ : joined_;
}

void HeadInput::put_normed(const StepContext& step, const NormStorage& norm, const float* rows, int at) {
  step.ops.norm(norm.view, rows, step.rows, size_, normed_);
  put(step, normed_, at);
}

void HeadInput::put(const StepContext& step, const float* rows, int at) {
  copy(step, rows, 2 * size_, joined_ + at);
}

void HeadInput::copy(const StepContext& step, const float* rows, int stride, float* to) const {
  const auto size = static_cast<size_t>(size_);
  step.ops.copy_heads({const_cast<float*>(rows), step.rows, size, 1, 0, size_},
                      {to, step.rows, static_cast<size_t>(stride), 1, 0, size_});
}

}  // namespace turbomind
