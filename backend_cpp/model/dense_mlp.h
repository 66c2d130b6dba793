// The MLP half of a layer: down(act(gate(x)) * up(x)), or down(act(up(x))).
#pragma once

#include "device/row_factor.h"
#include "model/spec/model_spec.h"
#include "model/step_context.h"
#include "model/weights.h"

namespace turbomind {

class DenseMlp {
 public:
  DenseMlp(Operators& ops, const ModelSpec& spec, int max_rows);

  // x, y [rows, hidden], not overlapping but that y may be what x is made of; with accumulate, y += instead of y =
  void run(const StepContext& step, const MlpWeights& weights, const LinearInput& x, float* y, bool accumulate);

 private:
  MlpSpec spec_;
  RowFactor gate_factor_;
  RowFactor up_factor_;
  AlignedBuffer projected_;  // [max_rows, intermediate_size], or twice that with a gate
  AlignedBuffer activated_;  // [max_rows, intermediate_size]
};

}  // namespace turbomind
