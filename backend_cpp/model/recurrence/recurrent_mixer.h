// The half of a layer that keeps a state of a fixed size a sequence: a causal convolution, then a recurrence
// (kernels/recurrence.h), a norm and a gate; or a gated convolution alone. RecurrenceSpec says which.
//
// A layer's piece of a sequence's state: the convolution's last inputs [conv_kernel - 1, channels], then, where there
// is a recurrence, a matrix [key_dim, value_dim] of each head, float32. Each step writes it where it is.
#pragma once

#include <vector>

#include "device/operators.h"
#include "kernels/recurrence.h"
#include "model/model_runner.h"
#include "model/recurrence/recurrence_weights.h"
#include "model/spec/model_spec.h"
#include "model/spec/shard.h"
#include "model/step/program.h"

namespace turbomind {

class RecurrentMixer {
 public:
  RecurrentMixer(Operators& ops, const Shard& shard, int max_rows);

  // Of its layers.
  CacheGroup cache_group() const;
  // From now on its layers' memory is in these pages.
  void use_cache(Operators& ops, const CachePlan& plan, const CacheGroup& group, std::byte* pages);
  // Prepares where the states of the step's sequences are.
  void begin_step(Operators& ops, const StepInput& input);
  // Adds the operations of a layer, of x and y [rows, hidden], not overlapping. They write the rows' states.
  void compile(Program& program, int layer, const RecurrenceWeights& weights, const Source& x, const Target& y);

 private:
  void convolve(const StepContext& step, int layer, const RecurrenceWeights& weights, const AlignedBuffer& to);
  void compute_gates(const StepContext& step, const RecurrenceWeights& weights, const float* rows);
  void recur(const StepContext& step, int layer, const RecurrenceWeights& weights);
  void compile_finish(Program& program, const RecurrenceWeights& weights, const HeadsView& gate);
  void norm_groups(const StepContext& step, const RecurrenceWeights& weights, const AlignedBuffer& rows, int width);
  void norm_over_ranks(const StepContext& step, const RecurrenceWeights& weights);
  StateMemory memory(const StepContext& step, int layer, size_t offset) const;
  HeadsView heads(const AlignedBuffer& buffer, int rows, int width, int count, int head_dim, int first) const;

  decltype(kCausalConv)::Function convolve_;
  decltype(kRecurrenceGates)::Function compute_gates_;
  decltype(kRecurrence)::Function recur_;
  ModelSpec spec_;
  RecurrenceSpec own_;
  int rank_;
  int ranks_that_share_norm_;  // 1: groups of the norm are whole on a rank
  std::vector<int> layers_;    // of the model
  std::vector<int> piece_of_;  // [layers of the model]
  int max_rows_;
  size_t page_bytes_ = 0;
  int page_pieces_ = 1;
  int page_count_ = 0;   // of a state
  int first_table_ = 0;  // in StepSpan::tables
  std::byte* pages_ = nullptr;
  int span_count_ = 0;  // of the step

  Staged spans_;  // StateSpan [pages of a state][max_rows]
  int input_width_;
  AlignedBuffer inputs_;                        // [max_rows, input_width]: what RecurrenceWeights::in makes
  AlignedBuffer mixed_;                         // [max_rows, channels]: queries, keys and values, convolved
  AlignedBuffer gates_;                         // [max_rows, 2 heads]
  AlignedBuffer decays_;                        // [max_rows, heads], of kimi_delta [max_rows, heads, key_dim]
  AlignedBuffer writes_;                        // [max_rows, heads]
  AlignedBuffer low_;                           // [max_rows, gate_rank]
  AlignedBuffer output_gates_;                  // [max_rows, values], of kimi_delta
  AlignedBuffer outputs_;                       // [max_rows, values]
  AlignedBuffer parts_;                         // [ranks, max_rows, values], where ranks share a norm
  AlignedBuffer whole_rows_;                    // [max_rows, ranks, values], likewise
  std::vector<AlignedBuffer> constant_decays_;  // [heads] of each layer, of lightning
  AlignedBuffer query_scale_;                   // [key_dim], with which a norm makes queries of length key_dim^-0.5
  AlignedBuffer key_scale_;                     // [key_dim], with which it makes keys of length 1
};

}  // namespace turbomind
