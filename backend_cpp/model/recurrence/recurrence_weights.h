// The weights of a layer with a recurrence.
#pragma once

#include <string>

#include "model/norm_storage.h"
#include "model/spec/shard.h"
#include "weights/weight_reader.h"

namespace turbomind {

struct RecurrenceWeights {
  // Queries, keys, values and their gate, one above the other; of mamba2, then the steps of heads; of kimi_delta, no
  // gate; of a short convolution, values, their gate and the gate of what comes out.
  LinearStorage in;
  LinearStorage
      gates;  // of gated_delta: what decays and write strengths come from, heads each; of kimi_delta the latter
  // Of kimi_delta, through vectors of gate_rank: what decays come from [heads, key_dim], and the gate.
  LinearStorage decay_down;
  LinearStorage decay_up;
  LinearStorage gate_down;
  LinearStorage gate_up;
  AlignedBuffer conv;       // float32 [channels, conv_kernel]
  AlignedBuffer conv_bias;  // float32 [channels], or empty
  AlignedBuffer a_log;      // float32 [heads], or empty
  AlignedBuffer dt_bias;    // float32 [heads], of kimi_delta [heads, key_dim], or empty
  AlignedBuffer skip;       // of mamba2: float32 [heads]
  NormStorage norm;  // of what comes out: [value_dim], of groups [heads, value_dim], of all ranks where these share one
  LinearStorage out;

  static RecurrenceWeights load(const Shard& shard, const WeightReader& read, const std::string& prefix);
};

}  // namespace turbomind
