// Cosines and sines of a step's rows, for each rotary embedding of a model.
//
// Where frequencies depend on the length of a sequence (StretchSpec), it is the length of its prompt, from the first
// token of the prompt to the last of the answer. So a prompt is computed as `transformers` computes it in one pass, and
// the keys of a sequence are all rotated by the same frequencies, however far the answer goes and however the prompt
// was cut.
#pragma once

#include <vector>

#include "device/operators.h"
#include "kernels/rope.h"
#include "model/model_runner.h"
#include "model/model_spec.h"

namespace turbomind {

class RopeTables {
 public:
  RopeTables(Operators& ops, std::vector<RopeSpec> ropes, int max_rows);

  void fill(Operators& ops, const StepInput& input);
  // `rope` is an index of the model's ropes, or -1: a table that rotates nothing.
  RopeTable table(int rope) const;
  // Prompts of equal variants are rotated by equal frequencies; 0: unstretched.
  int variant(int prompt_len) const;

 private:
  struct Buffers {
    Staged cosine;  // float32 [max_rows, pairs]
    Staged sine;
    std::vector<float> stretched;  // frequencies of the variant last used
    int variant = 0;
  };
  const std::vector<float>& frequencies(size_t index, int prompt_len);

  std::vector<RopeSpec> ropes_;
  std::vector<Buffers> buffers_;
};

}  // namespace turbomind
