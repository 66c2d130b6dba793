// The weights of a layer with a recurrence.
#pragma once

#include <string>

#include "model/norm_storage.h"
#include "model/spec/shard.h"
#include "weights/weight_reader.h"

namespace turbomind {

struct RecurrenceWeights {
  LinearStorage in;       // queries, keys, values and their gate, one above the other
  LinearStorage gates;    // what decays and write strengths come from, heads each
  AlignedBuffer conv;     // float32 [channels, conv_kernel]
  AlignedBuffer a_log;    // float32 [heads]
  AlignedBuffer dt_bias;  // float32 [heads]
  NormStorage norm;       // of each head of what comes out
  LinearStorage out;

  static RecurrenceWeights load(const Shard& shard, const WeightReader& read, const std::string& prefix);
};

}  // namespace turbomind
