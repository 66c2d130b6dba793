// The MLP half of a layer with experts: a router, the experts it chooses from, and the one every token goes to.
#pragma once

#include <string>
#include <vector>

#include "kernels/moe.h"
#include "model/model_spec.h"
#include "model/step_context.h"
#include "model/weight_arena.h"
#include "model/weight_reader.h"

namespace turbomind {

struct ExpertWeights {
  LinearStorage router;      // never rounded
  AlignedBuffer correction;  // float32 [num_experts], or empty
  WeightArena arena;
  std::vector<ExpertWeight> experts;
  std::vector<ExpertWeight> shared;  // one, or none
  LinearStorage shared_gate;         // [1, hidden], never rounded; empty where there is none

  // `prefix` is all of the tensors' names before "router", "experts", ...
  static ExpertWeights load(const ModelSpec& spec, const WeightReader& read, const std::string& prefix);
};

class ExpertMlp {
 public:
  explicit ExpertMlp(const ModelSpec& spec);

  // x, y [rows, hidden], not overlapping; with accumulate, y += instead of y =
  void run(const StepContext& step, const ExpertWeights& weights, const float* x, float* y, bool accumulate);

 private:
  MoeSpec moe_;
  Activation activation_;
  ExpertScratch scratch_;
  std::vector<float> logits_;    // [rows, num_experts]
  std::vector<int32_t> chosen_;  // [rows, experts_per_token]
  std::vector<float> shares_;    // [rows, experts_per_token]
};

}  // namespace turbomind
