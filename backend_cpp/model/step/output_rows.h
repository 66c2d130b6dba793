// Results of a step's rows: the last norm and the logits of those that are wanted, the tokens that a device with
// its own memory chooses from these, and the vectors of an encoder's texts.
#pragma once

#include <memory>
#include <vector>

#include "device/operators.h"
#include "model/model_runner.h"
#include "model/spec/model_spec.h"
#include "model/step/step_rows.h"
#include "model/step_context.h"
#include "model/weights.h"

namespace turbomind {

class OutputRows {
 public:
  // All but `shard` must outlive it. The shard's first rank alone brings rows to the host.
  OutputRows(Operators& ops, const Shard& shard, const ModelSpec& spec, const Weights& weights, int max_rows);

  bool samples_on_device() const { return sampler_ != nullptr; }
  bool reserve(const SamplingMetadata& choice) { return sampler_ && sampler_->reserve(choice); }
  // How many of `count` rows have their logits computed with the step; those of the others follow in parts.
  int computed_at_once(int count) const;

  // Begins a step, with the choices that it asks for, and puts the tokens there that the step before chooses.
  void begin(const StepInput& input, StepRows& rows);
  // Of hidden [rows, hidden_size]: the last norm of the `count` rows that are wanted (null: the first ones), and
  // the logits of the first `projected`.
  void compute(const StepContext& step, const float* hidden, const int32_t* logit_rows, int count, int projected);
  // Logits of wanted rows first, first + 1, ...
  void project(int first, int count, bool has_barriers);
  // Ends the step: chooses tokens and brings rows to the host; of the logits, the first `projected` are computed.
  void end(const LogitRows& logit_rows, int projected, bool has_barriers);
  // Ends one that pools texts: all rows of a text go into its vector, or all are wanted.
  void end_with_texts(const StepInput& input, const float* hidden);
  // Ends one that fills images alone.
  void end_without_rows();
  StepOutput collect();
  // Of the step's wanted rows, on the device: what a head takes of its own.
  const float* own_states() const { return (streams_.size() > 0 ? streams_ : rows_).as<float>(); }

 private:
  // The same for hidden states `rows`, of which each rank computes the logits of its part of the vocabulary.
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

  FloatRows rows_;             // float32 [max_rows, hidden_size], after the last norm
  FloatRows streams_;          // the same before it, where a head continues with these
  FloatRows logits_;           // [logit_rows_at_once_, vocab_size]
  AlignedBuffer logit_parts_;  // [ranks, rows, vocab_part_], where the vocabulary is divided
  // Wanted rows in the host's memory, where the device has its own. Memory is taken only when touched.
  AlignedBuffer host_logits_;   // vocab_size
  AlignedBuffer host_rows_;     // hidden_size
  std::vector<float> vectors_;  // of a step's texts, [texts, hidden_size], where they are pooled here
  StepOutput output_;
};

}  // namespace turbomind
