#include "model/streams.h"

#include <cmath>
#include <utility>

namespace turbomind {

Streams::Streams(Operators& ops, const ModelSpec& spec, int max_tokens)
    : mix_(ops.operations().require<AltupPredict>()),
      correct_(ops.operations().require<AltupCorrect>()),
      match_rms_(ops.operations().require<MatchRms>()),
      sum_(ops.operations().require<ScaledSum>()),
      count_(spec.streams->count),
      active_(spec.streams->active),
      size_(spec.hidden_size),
      streams_{float_buffer(ops, max_tokens, count_ * size_), float_buffer(ops, max_tokens, count_ * size_)},
      normed_(ops, max_tokens, size_),
      branch_(ops, max_tokens, size_),
      down_(ops, max_tokens, spec.streams->branch_rank),
      routed_(ops, max_tokens, count_),
      factors_(ops, max_tokens, count_ * count_) {}

void Streams::make(const StepContext& step, const std::vector<LinearStorage>& makers, const float* hidden) {
  current_ = 0;  // steps that are repeated begin with the same memory
  step.ops.copy(hidden, floats_of(step) * sizeof(float), stream(step, 0));
  for (int i = 1; i < count_; ++i) {
    step.ops.linear(makers[static_cast<size_t>(i - 1)].view, hidden, step.rows, stream(step, i), false);
    match_rms_(step.ops, {hidden, step.rows, size_, stream(step, i)});
  }
}

void Streams::route(const StepContext& step, const StreamWeights& weights, const float* x) {
  step.ops.norm(weights.router_norm.view, x, step.rows, size_, normed_);
  step.ops.linear(weights.router.view, normed_, step.rows, routed_, false);
  step.ops.scale_softcap(1 / static_cast<float>(size_), 1, step.rows, count_, routed_);
}

void Streams::predict(const StepContext& step, const StreamWeights& weights, float* hidden) {
  route(step, weights, active(step));
  step.ops.linear(weights.predict.view, routed_, step.rows, factors_, false);
  mix_(step.ops,
       {count_, step.rows, size_, factors_, streams_[current_].as<float>(), streams_[1 - current_].as<float>()});
  current_ = 1 - current_;
  step.ops.copy(active(step), floats_of(step) * sizeof(float), hidden);
}

void Streams::branch(const StepContext& step, const StreamWeights& weights, const float* x) {
  step.ops.linear(weights.branch_down.view, x, step.rows, down_, false);
  step.ops.linear(weights.branch_up.view, down_, step.rows, branch_, false);
  step.ops.norm(weights.branch_norm.view, branch_, step.rows, size_, branch_);
  step.ops.add_scaled(1, x, step.rows, size_, branch_);
}

void Streams::join(const StepContext& step, float* hidden) {
  sum_(step.ops, {1 / std::sqrt(2.0f), branch_, step.rows, size_, hidden});
}

void Streams::correct(const StepContext& step, const StreamWeights& weights, const float* hidden) {
  route(step, weights, hidden);
  step.ops.linear(weights.correct.view, routed_, step.rows, factors_, false);
  correct_(step.ops, {count_, step.rows, size_, active_, factors_, hidden, stream(step, 0)});
}

void Streams::add(const StepContext& step, const float* branch) {
  for (int i = 1; i < count_; ++i) step.ops.add_scaled(1, branch, step.rows, size_, stream(step, i));
}

void Streams::merge(const StepContext& step, const std::vector<LinearStorage>& readers, float* hidden) {
  const float* first = stream(step, 0);
  step.ops.copy(first, floats_of(step) * sizeof(float), hidden);
  for (int i = 1; i < count_; ++i) {
    step.ops.linear(readers[static_cast<size_t>(i - 1)].view, stream(step, i), step.rows, branch_, false);
    match_rms_(step.ops, {first, step.rows, size_, branch_});
    step.ops.add_scaled(1, branch_, step.rows, size_, hidden);
  }
  step.ops.scale_softcap(1 / static_cast<float>(count_), 0, step.rows, size_, hidden);
}

HyperConnections::HyperConnections(Operators& ops, const ModelSpec& spec, int max_tokens)
    : mean_(ops.operations().require<MeanOfParts>()),
      mix_(spec.hyper_connections->rank == 0 ? ops.operations().require<MixParts>() : nullptr),
      add_(ops.operations().require<AddToParts>()),
      count_(spec.hyper_connections->count),
      size_(spec.hidden_size),
      spec_(*spec.hyper_connections),
      streams_(ops, max_tokens, count_ * size_),
      normed_(ops, max_tokens, count_ * size_),
      gates_(ops, max_tokens, spec_.rank > 0 ? count_ * size_ : 0),
      low_(ops, max_tokens, spec_.rank),
      weights_(ops, max_tokens, (2 + (spec_.mixing_iterations > 0 ? count_ : 0)) * count_) {}

void HyperConnections::make(const StepContext& step, const float* hidden) {
  const auto size = static_cast<size_t>(size_);
  const HeadsView repeated{const_cast<float*>(hidden), step.rows, size, count_, 0, size_};
  step.ops.copy_heads(repeated, {streams_, step.rows, count_ * size, count_, size, size_});
}

void HyperConnections::mix(const StepContext& step, const HyperWeights& weights, float* mixed) {
  if (spec_.rank == 0) {
    const auto width = static_cast<size_t>(weights.add.view.out_features);
    step.ops.norm(weights.norm.view, streams_, step.rows, count_ * size_, normed_);
    step.ops.linear(weights.add.view, normed_, step.rows, weights_, false);
    const auto* biases = weights.biases.as<float>();
    const PartWeights read{weights_, width, biases, weights.read_scale, 1, spec_.eps};
    const bool mixes = spec_.mixing_iterations > 0;
    added_ = {weights_ + count_, width, biases + count_, weights.added_scale, spec_.magnitude, mixes ? 0 : spec_.eps};
    if (mixes) {
      matrix_ = {weights_ + 2 * count_, width,     biases + 2 * count_,
                 weights.mixed_scale,   spec_.eps, spec_.mixing_iterations};
    }
    return mix_(step.ops, {count_, step.rows, size_, read, streams_, mixed});
  }
  const float share = 1 / static_cast<float>(count_);
  added_ = {weights_, static_cast<size_t>(count_), nullptr, share, 2};
  norm_parts(step, weights.norm, count_, size_, streams_, normed_);
  step.ops.linear(weights.down.view, normed_, step.rows, low_, false);
  step.ops.scale_softcap(share, 0, step.rows, spec_.rank, low_);
  step.ops.activate(Activation::kSilu, low_, step.rows, spec_.rank, low_);
  step.ops.linear(weights.up.view, low_, step.rows, gates_, false);
  if (weights.add.view.data != nullptr) step.ops.linear(weights.add.view, normed_, step.rows, weights_, false);
  const HeadsView gates = rows_view(gates_, step.rows, count_ * size_);
  step.ops.gate_heads(Activation::kSigmoid, gates, rows_view(normed_, step.rows, count_ * size_));
  mean_(step.ops, {count_, step.rows, size_, normed_, mixed});
}

void HyperConnections::add(const StepContext& step, const float* branch) {
  add_(step.ops, {count_, step.rows, size_, added_, branch, streams_, matrix_});
}

void norm_parts(const StepContext& step, const NormStorage& norm, int count, int size, const float* x, float* y) {
  const auto width = static_cast<size_t>(count) * static_cast<size_t>(size);
  NormWeight weight = norm.view;
  for (int i = 0; i < count; ++i, weight.weight += size) {
    step.ops.norm(weight, rows_view(x + i * size, step.rows, size, width),
                  rows_view(y + i * size, step.rows, size, width));
  }
}

}  // namespace turbomind
