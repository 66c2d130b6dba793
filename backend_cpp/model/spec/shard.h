// Shard of a rank in tensor parallelism.
//
// Heads, and the channels inside of MLPs and experts, are divided; so a rank multiplies with some rows of the matrices
// that read the residual stream, and with some columns of those that write it. What a half of a layer writes is then a
// sum over the ranks, and a bias is the first rank's. The output layer is divided by tokens of the vocabulary.
// Everything else is whole on every rank.
#pragma once

#include <vector>

#include "model/spec/model_spec.h"
#include "weights/slice.h"

namespace turbomind {

// Of a kind of attention.
struct AttentionHeads {
  Slice queries = 0;
  Slice kv = 0;  // ranks share one where there are fewer heads than ranks
};

struct Shard {
  int rank = 0;
  int count = 1;                               // ranks
  ModelSpec spec;                              // of the model, with the heads and sizes of the rank
  std::vector<AttentionHeads> attention = {};  // by kind
  Slice state_heads = 0;                       // of a recurrence
  Slice state_key_heads = 0;                   // of a recurrence; ranks share one as they share those of attention
  // Of a recurrence, where it has any; all of them where ranks do not divide them.
  Slice norm_groups = 0;
  std::vector<Slice> channels = {};  // [layers], of the dense MLP; none where there is none
  Slice expert_channels = 0;
  Slice shared_channels = 0;  // of the shared expert
  Slice vocab = 0;            // of the output layer
  int vocab_part = 0;         // tokens of a rank; fewer of the last ones

  static Shard whole(ModelSpec spec);
  // `group`: neighbouring inputs that a stored or rounded matrix has one scale for, and that are not divided; 1: none.
  // Throws Error naming everything that cannot be divided so.
  static Shard of(const ModelSpec& spec, int rank, int count, int group);
};

// Whether a group of heads that go through one norm after a recurrence is divided among ranks.
inline bool shares_norm(const Shard& shard) {
  return shard.count > 1 && shard.norm_groups.size() > 0 && shard.norm_groups.is_whole();
}

}  // namespace turbomind
