// The weights of a layer with a recurrence.
#pragma once

#include <string>

#include "model/norm_storage.h"
#include "model/spec/shard.h"
#include "weights/weight_reader.h"

namespace turbomind {

struct RecurrenceWeights {
  // Queries, keys, values and their gate, one above the other; of mamba2, then the steps of heads; of a short
  // convolution, values, their gate and the gate of what comes out.
  LinearStorage in;
  LinearStorage gates;      // of gated_delta: what decays and write strengths come from, heads each
  AlignedBuffer conv;       // float32 [channels, conv_kernel]
  AlignedBuffer conv_bias;  // float32 [channels], or empty
  AlignedBuffer a_log;      // float32 [heads]
  AlignedBuffer dt_bias;    // float32 [heads]
  AlignedBuffer skip;       // of mamba2: float32 [heads]
  NormStorage norm;         // of what comes out: [value_dim], of groups [heads, value_dim]
  LinearStorage out;

  static RecurrenceWeights load(const Shard& shard, const WeightReader& read, const std::string& prefix);
};

}  // namespace turbomind
