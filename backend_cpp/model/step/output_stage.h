// Step outputs: final norm and logits of the requested rows, tokens sampled on the device, vectors of encoded texts.
#pragma once

#include <memory>
#include <vector>

#include "device/operators.h"
#include "model/model_runner.h"
#include "model/spec/model_spec.h"
#include "model/step/step_tokens.h"
#include "model/step_context.h"
#include "model/weights.h"

namespace turbomind {

class OutputStage {
 public:
  // All but `shard` must outlive it. The shard's first rank alone brings rows to the host.
  OutputStage(Operators& ops, const Shard& shard, const ModelSpec& spec, const Weights& weights, int max_tokens);

  bool samples_on_device() const { return sampler_ != nullptr; }
  bool reserve(const SamplingMetadata& choice) { return sampler_ && sampler_->reserve(choice); }
  // How many of `count` rows have their logits computed with the step; those of the others follow in parts.
  int computed_at_once(int count) const;

  // Begins a step: its sampling metadata, and the in-flight tokens of the step before.
  void begin(const StepInput& input, StepTokens& rows);
  // Final norm of the `count` logit rows (null: the first) of `hidden`, and the logits of the first `projected`.
  void compute(const StepContext& step, const float* hidden, const int32_t* logit_rows, int count, int projected);
  // Logits of logit rows first, first + 1, ...
  void project(int first, int count, bool has_barriers);
  // Ends the step: samples and copies rows to the host; the first `projected` logits are computed already.
  void end(const LogitRows& logit_rows, int projected, bool has_barriers);
  // Ends a step that pools texts.
  void end_with_texts(const StepInput& input, const float* hidden);
  // Ends a step that only writes encoder keys and values.
  void end_without_tokens();
  StepOutput collect();
  // Logit rows on the device: what a draft head continues from.
  const float* target_states() const { return (streams_.size() > 0 ? streams_ : rows_).as<float>(); }

 private:
  // The same where each rank computes the logits of its part of the vocabulary.
  void project_sharded(const float* rows, int count, bool has_barriers);
  void download(const float* from, int rows, int width, float* to);

  Operators& ops_;
  const ModelSpec& spec_;
  const Weights& weights_;
  int rank_;
  int vocab_part_;   // Shard's
  bool is_divided_;  // so is the vocabulary
  int logit_rows_at_once_;
  std::unique_ptr<TokenSampler> sampler_;  // null: the host chooses

  FloatRows rows_;             // float32 [max_tokens, hidden_size], after the last norm
  FloatRows streams_;          // the same before it, where a head continues with these
  FloatRows logits_;           // [logit_rows_at_once_, vocab_size]
  AlignedBuffer logit_parts_;  // [ranks, rows, vocab_part_], where the vocabulary is divided
  // Logit rows in host memory, where the device has its own. Pages are taken when touched.
  AlignedBuffer host_logits_;   // vocab_size
  AlignedBuffer host_rows_;     // hidden_size
  std::vector<float> vectors_;  // of a step's texts, [texts, hidden_size], where they are pooled here
  StepOutput output_;
};

}  // namespace turbomind
