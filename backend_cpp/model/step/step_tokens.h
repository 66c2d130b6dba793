// Inputs of a step's rows: tokens, positions, the rows that take the place of token embeddings, and
// which rows the step is asked for.
#pragma once

#include <vector>

#include "device/operators.h"
#include "model/model_runner.h"
#include "model/spec/model_spec.h"
#include "model/step_context.h"

namespace turbomind {

// Rows whose logits are computed: first those to sample from, then the requested ones.
struct LogitRows {
  int choices = 0;
  int requested = 0;
  int count() const { return choices + requested; }
};

class StepTokens {
 public:
  // `ops` and `spec` must outlive it.
  StepTokens(Operators& ops, const ModelSpec& spec, int max_tokens);

  // Uploads what the step's operators read. Returns how many rows take the place of token embeddings.
  int stage_embeddings(const StepInput& input);
  // The same of everything else; comes after it.
  LogitRows stage(const StepInput& input);

  // Of the step staged last, on the device. Token types and positions: null where the model reads none.
  int32_t* tokens() { return tokens_.device<int32_t>(); }
  const int32_t* positions() const { return positions_.size() > 0 ? positions_.device<int32_t>() : nullptr; }
  const int32_t* token_types() const { return token_types_.size() > 0 ? token_types_.device<int32_t>() : nullptr; }
  const int32_t* logit_rows() const { return logit_rows_.device<int32_t>(); }
  // Its in-flight tokens.
  const std::vector<InFlightToken>& in_flight() const { return in_flight_; }

  // hidden [rows, hidden_size]. Puts the `count` rows that take the place of token embeddings there (part 0), or adds
  // what they bring after layer `part` - 1.
  void scatter_embeddings(const StepContext& step, int part, int count, float* hidden) const;

 private:
  void stage_tokens(const StepInput& input);
  void stage_positions(const StepInput& input);
  void stage_token_types(const StepInput& input);
  LogitRows stage_logit_rows(const StepInput& input);

  Operators& ops_;
  const ModelSpec& spec_;
  Staged tokens_;                         // int32 [max_tokens], as all but the embeddings
  Staged positions_;                      // empty without learned positions
  Staged token_types_;                    // empty without token types
  Staged logit_rows_;                     // numbers of rows
  Staged embeddings_;                     // float32 [1 + deepstack layers, rows, hidden_size], where it takes them
  Staged embedding_tokens_;               // their places in the step
  std::vector<int> embedded_tokens_;      // of the step begun last
  std::vector<int> choice_of_span_;       // of the same
  std::vector<InFlightToken> in_flight_;  // of the step
};

}  // namespace turbomind
