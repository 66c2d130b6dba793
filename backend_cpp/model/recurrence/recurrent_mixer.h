// Recurrent mixer: a causal convolution, then a recurrence (kernels/recurrence.h), a norm and a gate; or a gated
// convolution alone (RecurrenceSpec).
//
// A layer's piece of a sequence's state: the convolution's last inputs [conv_kernel - 1, channels], then, where there
// is a recurrence, a matrix [key_dim, value_dim] of each head, float32. Each step writes it where it is.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/operators.h"
#include "kernels/recurrence.h"
#include "model/cache_memory.h"
#include "model/recurrence/recurrence_kind.h"
#include "model/step/program.h"

namespace turbomind {

// Bytes of the tokens before a step in the state of n-grams, which the inputs of their convolution follow.
inline size_t ngram_context_bytes(const NgramsSpec& ngrams) {
  return (static_cast<size_t>(ngrams.size - 1) * sizeof(int32_t) + 63) / 64 * 64;
}

class RecurrentMixer final : public LayerMemory {
 public:
  RecurrentMixer(Operators& ops, const Shard& shard, int max_tokens);

  std::vector<CacheGroup> cache_groups(const StepLimits&) const override { return {group_}; }
  size_t use_cache(Operators& ops, const CachePlan& plan, size_t first_group, std::byte* pages) override;
  void begin_step(Operators& ops, const StepInput& input) override;
  // Adds the operations of a layer, of x and y [rows, hidden], not overlapping. They write the rows' states.
  void compile(Program& program, int layer, const RecurrenceWeights& weights, const Source& x, const Target& y);
  // The state of n-grams' layer number `index` (model/ngrams.h), from a byte on: a piece of these layers' group.
  StateMemory ngram_state(const StepContext& step, int index, size_t offset) const {
    return piece_memory(step, first_ngram_piece_ + index, offset);
  }

 private:
  void convolve(const StepContext& step, int layer, const RecurrenceWeights& weights);
  void compute_gates(const StepContext& step, const RecurrenceWeights& weights, const float* rows);
  void recur(const StepContext& step, int layer, const RecurrenceWeights& weights);
  void compile_gate(Program& program, const std::string& text, const StridedRows& gate, const StridedRows& rows);
  void compile_norm(Program& program, const RecurrenceWeights& weights);
  void norm_groups(const StepContext& step, const RecurrenceWeights& weights, const StridedRows& rows);
  void norm_over_ranks(const StepContext& step, const RecurrenceWeights& weights);
  StateMemory piece_memory(const StepContext& step, int piece, size_t offset) const;
  StateMemory memory(const StepContext& step, int layer, size_t offset) const {
    return piece_memory(step, piece_of_[static_cast<size_t>(layer)], offset);
  }
  StridedRows outputs() const { return {outputs_, static_cast<size_t>(values_)}; }

  OperationFunction<CausalConv> convolve_;
  OperationFunction<RecurrenceGates> compute_gates_;
  OperationFunction<Recurrence> recur_;
  OperationFunction<SelectiveScan> scan_;
  OperationFunction<GatedLru> lru_;
  std::unique_ptr<RecurrenceRule> rule_;
  const RecurrenceSpec& config_;
  int values_;  // numbers of a row of what comes out
  int rank_;
  int ranks_that_share_norm_;  // 1: groups of the norm are whole on a rank
  size_t conv_bytes_;          // of a piece
  std::vector<int> piece_of_;  // [layers of the model]
  int first_ngram_piece_ = 0;
  int max_tokens_;
  CacheGroup group_;  // as planned, once there is a cache
  size_t page_bytes_ = 0;
  std::byte* pages_ = nullptr;
  int span_count_ = 0;  // of the step

  Staged spans_;  // StateSpan [pages of a state][max_tokens]
  RecurrenceRows rows_;
  FloatRows mixed_;                             // [max_tokens, channels]: queries, keys, values, or values, convolved
  FloatRows outputs_;                           // [max_tokens, values]
  FloatRows parts_;                             // [ranks, max_tokens, values], where ranks share a norm
  FloatRows whole_rows_;                        // [max_tokens, ranks, values], likewise
  std::vector<AlignedBuffer> constant_decays_;  // [heads] of each layer, where decays are constant
  AlignedBuffer query_scale_;                   // [key_dim], with which a norm makes queries of length key_dim^-0.5
  AlignedBuffer key_scale_;                     // [key_dim], with which it makes keys of length 1
};

}  // namespace turbomind
