// Cosines and sines of a step's rows, for each rotary embedding of a model.
#pragma once

#include <vector>

#include "base/aligned_buffer.h"
#include "kernels/rope.h"
#include "model/model_runner.h"
#include "model/model_spec.h"

namespace turbomind {

class RopeTables {
 public:
  RopeTables(std::vector<RopeSpec> ropes, int max_rows);

  void fill(const StepInput& input);
  // `rope` is an index of the model's ropes, or -1: a table that rotates nothing.
  RopeTable table(int rope) const;

 private:
  struct Buffers {
    AlignedBuffer cosine;  // [max_rows, pairs]
    AlignedBuffer sine;
  };
  std::vector<RopeSpec> ropes_;
  std::vector<Buffers> buffers_;
};

}  // namespace turbomind
