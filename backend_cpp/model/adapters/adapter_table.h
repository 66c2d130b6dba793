// LoRA adapters of a runner, and of a step's rows.
//
// Used by the step thread only.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "device/operators.h"
#include "model/adapters/adapter_weights.h"
#include "model/model_runner.h"
#include "weights/linear_storage.h"

namespace turbomind {

class AdapterTable {
 public:
  AdapterTable(Operators& ops, int max_tokens)
      : max_tokens_(max_tokens), rows_(ops, max_tokens * sizeof(const LoraWeight*)) {}

  // `slot` is free. Takes device memory, and then throws Error(kUnavailable) where there is none.
  void upload(Operators& ops, int slot, std::unique_ptr<AdapterWeights> adapter);
  void drop(int slot) { adapters_.erase(slot); }

  // Prepares a step of which `computed` rows are computed; false: no row has an adapter.
  bool begin_step(Operators& ops, const StepInput& input, int computed);
  // y += what the rows' adapters add to a layer whose inputs are x.
  void add(Operators& ops, const LinearStorage& layer, const float* x, float* y) const;
  // y += what they add to the rows of a table of embeddings with these numbers.
  void add_embeddings(Operators& ops, const LinearStorage& table, const int32_t* numbers, float* y) const;

 private:
  int max_tokens_;
  // Since the first adapter.
  OperationFunction<LoraShrink> shrink_ = nullptr;
  OperationFunction<LoraGather> gather_ = nullptr;
  OperationFunction<LoraExpand> expand_ = nullptr;
  std::map<int, std::unique_ptr<AdapterWeights>> adapters_;
  Staged rows_;                 // [max_tokens] pointers to layers, or null
  std::vector<int> max_ranks_;  // of each adapted layer, over the step's adapters
  int computed_ = 0;
  AlignedBuffer shrunk_;  // float32 [max_tokens, the largest rank of a layer]; grows
  int max_rank_ = 0;
};

}  // namespace turbomind
