// The MLP half of a layer with experts: a router, the experts it chooses from, and the one every token goes to.
#pragma once

#include <string>
#include <vector>

#include "kernels/moe.h"
#include "model/norm_storage.h"
#include "model/spec/model_spec.h"
#include "model/spec/shard.h"
#include "model/step_context.h"
#include "weights/weight_arena.h"
#include "weights/weight_reader.h"

namespace turbomind {

struct ExpertWeights {
  LinearStorage router;      // never rounded
  NormStorage router_norm;   // of what the router reads, and the division by sqrt(hidden); or empty
  AlignedBuffer correction;  // float32 [num_experts], or empty
  AlignedBuffer scales;      // float32 [num_experts], or empty
  WeightArena arena;
  std::vector<ExpertWeight> experts;
  std::vector<ExpertWeight> shared;  // one, or none
  LinearStorage shared_gate;         // [1, hidden], never rounded; empty where there is none

  // `prefix` is all of the tensors' names before "router", "experts", ...
  static ExpertWeights load(const Shard& shard, const WeightReader& read, const std::string& prefix);
};

class ExpertMlp {
 public:
  ExpertMlp(Operators& ops, const ModelSpec& spec, int max_rows);

  // x, stream, y [rows, hidden], not overlapping; with accumulate, y += instead of y =. `stream`: the residual stream,
  // which some routers read.
  void run(const StepContext& step, const ExpertWeights& weights, const float* x, const float* stream, float* y,
           bool accumulate);

 private:
  MoeSpec moe_;
  Activation activation_;
  AlignedBuffer router_rows_;   // float32 [max_rows, hidden]: what the router reads, where it has a norm
  AlignedBuffer logits_;        // float32 [max_rows, num_experts]
  AlignedBuffer chosen_;        // int32 [max_rows, experts_per_token]
  AlignedBuffer shares_;        // float32 [max_rows, experts_per_token]
  AlignedBuffer scaled_;        // float32 [max_rows, hidden]: inputs times shares, where the router scales these
  AlignedBuffer ones_;          // float32 [max_rows], then
  AlignedBuffer first_expert_;  // int32 [max_rows], zeros: every row goes to the shared expert ...
  AlignedBuffer shared_gate_;   // float32 [max_rows]: ... with this weight
};

}  // namespace turbomind
