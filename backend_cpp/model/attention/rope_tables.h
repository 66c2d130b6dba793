// Cosines and sines of a step's rows, for each rotary embedding of a model.
//
// Where frequencies depend on the length of a sequence (StretchSpec), it is the length of its prompt, from the first
// token of the prompt to the last of the response. So a prompt is computed as `transformers` computes it in one pass,
// and the keys of a sequence are all rotated by the same frequencies, however far the response goes and however the
// prompt was cut.
#pragma once

#include <vector>

#include "device/operators.h"
#include "kernels/rope.h"
#include "model/model_runner.h"
#include "model/spec/model_spec.h"

namespace turbomind {

class RopeTables {
 public:
  // Rows are turned by the position of the token that is `back` before theirs, for those that have one.
  RopeTables(Operators& ops, std::vector<RopeSpec> ropes, int max_tokens, int back = 0);

  // Brings the positions of a step to the device.
  void stage(Operators& ops, const StepInput& input);
  // Computes the tables of its rows.
  void fill(Operators& ops, int rows);
  // `rope` is an index of the model's ropes, or -1: a table that rotates nothing.
  RopeTable table(int rope) const;
  // Prompts of equal variants are rotated by equal frequencies; 0: unstretched.
  int variant(int prompt_len) const;

 private:
  struct Buffers {
    AlignedBuffer cosine;  // float32 [max_tokens, pairs]
    AlignedBuffer sine;
    Staged frequencies;            // float32 [sets, pairs]; of a step, or, without a stretch, of all
    Staged sets;                   // int32 [max_tokens]; which set a row has. Empty without a stretch
    AlignedBuffer axes;            // int32 [pairs]; empty where positions have one
    std::vector<float> stretched;  // the set of the variant last used
    int variant = 0;
  };
  const std::vector<float>& frequencies(size_t index, int variant);
  void stage_sets(Operators& ops, size_t index, const StepInput& input);

  std::vector<RopeSpec> ropes_;
  std::vector<Buffers> buffers_;
  int axes_;  // numbers of a position
  int back_;
  Staged positions_;  // int32 [max_tokens, axes_]
};

}  // namespace turbomind
