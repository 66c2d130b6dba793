#include "model/head/head_input.h"

#include <algorithm>

#include "base/error.h"

namespace turbomind {

HeadInput::HeadInput(Operators& ops, const ModelSpec& spec, int max_rows)
    : kind_(spec.head->kind),
      size_(spec.hidden_size),
      traits_{width_of(*spec.head), spec.head->target_layers, spec.head->tokens},
      joined_(float_buffer(ops, max_rows, 2 * size_)),
      normed_(float_buffer(ops, max_rows, size_)),
      first_(float_buffer(ops, kind_ == HeadKind::kEagle ? max_rows : 0, size_)) {
  if (!ops.shares_host_memory()) throw invalid_argument("heads run on CPUs alone");
}

void HeadInput::run(const StepContext& step, const StepInput& input, const Weights& weights, float* stream) {
  const HeadWeights& head = *weights.head;
  const float* alongside = input.alongside.data();
  if (kind_ == HeadKind::kEagle3) {
    put_normed(step, weights.layers.front().attention_norm, stream, 0);
    if (input.is_alongside_own) {
      std::copy_n(alongside, static_cast<ptrdiff_t>(step.rows) * size_, stream);
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
  step.linear(head.join, joined_.as<float>(), stream, false);
  if (kind_ == HeadKind::kEagle) std::copy_n(stream, static_cast<ptrdiff_t>(step.rows) * size_, first_.as<float>());
}

const float* HeadInput::first_input() const {
  if (kind_ == HeadKind::kMtp) return nullptr;
  return kind_ == HeadKind::kEagle ? first_.as<float>() : joined_.as<float>();
}

void HeadInput::put_normed(const StepContext& step, const NormStorage& norm, const float* rows, int at) {
  step.ops.norm(norm.view, rows, step.rows, size_, normed_.as<float>());
  put(step, normed_.as<float>(), at);
}

void HeadInput::put(const StepContext& step, const float* rows, int at) {
  for (ptrdiff_t row = 0; row < step.rows; ++row) {
    std::copy_n(rows + row * size_, size_, joined_.as<float>() + 2 * row * size_ + at);
  }
}

}  // namespace turbomind
