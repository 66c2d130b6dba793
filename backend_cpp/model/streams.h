// Several residual streams: AltUp's, of which layers compute on one, or those of hyper-connections.
#pragma once

#include <array>
#include <vector>

#include "kernels/streams.h"
#include "model/spec/model_spec.h"
#include "model/step_context.h"
#include "model/weights.h"

namespace turbomind {

// Of AltUp, with LAuReL (Gemma 3n): layers compute on one of them and correct the others.
class Streams {
 public:
  Streams(Operators& ops, const ModelSpec& spec, int max_tokens);

  // hidden [rows, hidden_size] everywhere. Makes all streams of the embeddings.
  void make(const StepContext& step, const std::vector<LinearStorage>& makers, const float* hidden);
  // In front of a layer: predicts all streams, and gives out the one that the layer computes on.
  void predict(const StepContext& step, const StreamWeights& weights, float* hidden);
  // Keeps x + norm(up(down(x))) of what the layer's attention reads, which `join` adds.
  void branch(const StepContext& step, const StreamWeights& weights, const float* x);
  // Between the halves of a layer: hidden = (hidden + that) / sqrt(2).
  void join(const StepContext& step, float* hidden);
  // After a layer's halves: corrects all streams by what the layer made of its own.
  void correct(const StepContext& step, const StreamWeights& weights, const float* hidden);
  const float* active(const StepContext& step) const { return stream(step, active_); }
  // Adds to all streams but the first.
  void add(const StepContext& step, const float* branch);
  // After the last layer: the mean of the streams.
  void merge(const StepContext& step, const std::vector<LinearStorage>& readers, float* hidden);

 private:
  float* stream(const StepContext& step, int index) const {
    return streams_[current_].as<float>() + static_cast<size_t>(index) * floats_of(step);
  }
  size_t floats_of(const StepContext& step) const { return static_cast<size_t>(step.rows) * size_; }
  // routed_ [rows, streams] = tanh of the router of x.
  void route(const StepContext& step, const StreamWeights& weights, const float* x);

  OperationFunction<AltupPredict> mix_;
  OperationFunction<AltupCorrect> correct_;
  OperationFunction<MatchRms> match_rms_;
  OperationFunction<ScaledSum> sum_;
  int count_;
  int active_;
  int size_;
  size_t current_ = 0;                    // of streams_
  std::array<AlignedBuffer, 2> streams_;  // [streams, rows, hidden_size]
  FloatRows normed_;                      // [max_tokens, hidden_size]
  FloatRows branch_;                      // the same
  FloatRows down_;                        // [max_tokens, branch_rank]
  FloatRows routed_;                      // [max_tokens, streams]
  FloatRows factors_;                     // [max_tokens, streams, streams]
};

// Of hyper-connections (HyperConnectionsSpec).
class HyperConnections {
 public:
  HyperConnections(Operators& ops, const ModelSpec& spec, int max_tokens);

  // Makes all streams of the embeddings [rows, hidden_size].
  void make(const StepContext& step, const float* hidden);
  // mixed [rows, hidden_size] = what a half of a layer, or the output, reads; keeps the weights that `add` adds with.
  void mix(const StepContext& step, const HyperWeights& weights, float* mixed);
  void add(const StepContext& step, const float* branch);
  // mean [rows, hidden_size] of the streams.
  void mean(const StepContext& step, float* mean) { mean_(step.ops, {count_, step.rows, size_, streams_, mean}); }
  // [rows, streams, hidden_size]
  float* streams() const { return streams_; }

 private:
  OperationFunction<MeanOfParts> mean_;
  OperationFunction<MixParts> mix_;  // null where streams are weighted by number
  OperationFunction<AddToParts> add_;
  int count_;
  int size_;
  HyperConnectionsSpec spec_;
  FloatRows streams_;  // [max_tokens, streams, hidden_size]
  FloatRows normed_;   // the same
  FloatRows gates_;    // the same
  FloatRows low_;      // [max_tokens, rank]
  FloatRows weights_;  // [max_tokens, streams], to read and to add, and squared, to mix
  PartWeights added_;  // of the last mix
  MixingMatrix matrix_;
};

// Norms each of `count` parts of rows [rows, count, size] by a weight of its own, from `x` to `y`, which may be x.
void norm_parts(const StepContext& step, const NormStorage& norm, int count, int size, const float* x, float* y);

}  // namespace turbomind
