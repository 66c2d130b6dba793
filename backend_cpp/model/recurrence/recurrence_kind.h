// Kinds of recurrence (RecurrenceSpec::kind). All that one of them has of its own is a class in recurrence_kind.cc and
// a line of RecurrenceRule::make: its rows of the first linear layer, its tensors and workspaces, and its gates.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/recurrence.h"
#include "model/norm_storage.h"
#include "model/spec/shard.h"
#include "model/step_context.h"

namespace turbomind {

struct RecurrenceWeights {
  LinearStorage in;                    // queries, keys and values, one above the other, then rows of the kind
  LinearStorage gates;                 // what decays and write strengths come from, where that is apart from `in`
  std::vector<LinearStorage> further;  // of the kind
  AlignedBuffer conv;                  // float32 [channels, conv_kernel]
  AlignedBuffer conv_bias;             // float32 [channels], or empty
  AlignedBuffer a_log;                 // float32 [heads], or empty
  AlignedBuffer dt_bias;               // float32 [heads, RecurrenceRule::decay_width], or empty
  AlignedBuffer skip;                  // float32 [heads], or [heads, value_dim] of a selective scan, or empty
  AlignedBuffer rates;                 // float32 [key_dim, heads, value_dim] of a selective scan and of an LRU
  AlignedBuffer biases;                // float32 [2, heads, value_dim] of an LRU's gates
  // Of what comes out: [value_dim], of groups [heads, value_dim], of all ranks where these share one; or of what a
  // selective scan's steps, keys and queries are made from: [gate_rank + 2 key_dim].
  NormStorage norm;
  LinearStorage out;
  WEIGHT_MEMBERS(in, gates, further, conv, conv_bias, a_log, dt_bias, skip, rates, biases, norm, out)

  static RecurrenceWeights load(const Shard& shard, const WeightReader& read, const std::string& prefix);
};

// Float32 rows of a step [max_tokens, width] that an operation leaves to the next ones.
struct RecurrenceRows {
  AlignedBuffer inputs;  // [max_tokens, input_width]: what RecurrenceWeights::in makes
  size_t input_width = 0;
  AlignedBuffer decays;                // [max_tokens, heads, RecurrenceRule::decay_width]
  AlignedBuffer writes;                // [max_tokens, heads]
  std::vector<AlignedBuffer> buffers;  // RecurrenceRule::workspaces

  StridedRows from(int number) const { return {inputs.as<float>() + number, input_width}; }
};

// Operations of a kind. Sizes are a rank's.
class RecurrenceRule {
 public:
  // Where a rank's tensors of a layer are.
  struct Tensors {
    const WeightReader& read;
    const std::string& prefix;
    int hidden;
    Slice heads;
    Slice keys;
    Slice values;

    LinearStorage linear(const char* name, const Slice& outputs, const Slice& inputs, bool bias = false) const {
      return read.linear(prefix + name, outputs, inputs, bias);
    }
  };

  static std::unique_ptr<RecurrenceRule> make(const RecurrenceSpec& config);
  virtual ~RecurrenceRule() = default;

  int values() const { return config.num_heads * config.value_dim; }  // numbers of a row that are values
  // Numbers of a row that the convolution mixes over tokens.
  virtual int channels() const { return 2 * keys() + values(); }
  // Numbers of a row that are keys, and as many queries; 0: there is a convolution alone, and no matrix.
  virtual int keys() const { return config.num_key_heads * config.key_dim; }
  // Rows of `in`.
  virtual Slice inputs(const Slice& keys, const Slice& values, const Slice& /*heads*/) const {
    return Slice::joined({keys, keys, values, values});
  }
  // Reads the tensors that not all kinds have.
  virtual void load(const Tensors&, RecurrenceWeights&) const {}
  // Widths of float32 rows that it works on.
  virtual std::vector<int> workspaces() const { return {}; }
  virtual bool has_delta() const { return false; }
  // Decays of a head in a row.
  virtual int decay_width() const { return 1; }
  // Those of a layer's heads where they are the same in all rows.
  virtual std::vector<float> constant_decays(int /*layer*/) const { return {}; }
  virtual bool is_selective() const { return false; }
  virtual bool is_lru() const { return false; }
  bool has_gates() const { return keys() > 0 && !is_selective() && !is_lru() && constant_decays(0).empty(); }
  // Their operands a and b, made of x [rows, hidden], and what else not all kinds have.
  virtual RecurrenceGates gates(const StepContext&, const RecurrenceWeights&, const float* /*x*/,
                                const RecurrenceRows&) const {
    return {};
  }
  // A selective scan's operands besides state and out, made of convolved values [rows, values()].
  virtual SelectiveScan scan(const StepContext&, const RecurrenceWeights&, const float* /*values*/,
                             const RecurrenceRows&) const {
    return {};
  }
  // Those of a gated linear recurrent unit, likewise.
  virtual GatedLru lru(const StepContext&, const RecurrenceWeights&, const float* /*values*/,
                       const RecurrenceRows&) const {
    return {};
  }
  // The rows whose gate what comes out is multiplied by.
  virtual StridedRows output_gate(const RecurrenceRows& rows) const { return rows.from(channels()); }

  explicit RecurrenceRule(const RecurrenceSpec& spec) : config(spec) {}
  const RecurrenceSpec config;
};

}  // namespace turbomind
