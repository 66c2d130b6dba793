// What the rows that a linear layer multiplies are made of: matrices as they are, their norms, or the gated activation
// between the projections of an MLP. Made where they are read, they need not pass through memory.
#pragma once

#include <cstddef>
#include <optional>

#include "kernels/activation.h"
#include "kernels/norm.h"

namespace turbomind {

struct LinearWeight;

struct LinearInput {
  // [rows, in_features]
  LinearInput(const float* rows) : x(rows) {}

  // Of x [rows, in_features]. `room` of that size may be filled with them.
  static LinearInput normed(const NormWeight& norm, const float* x, float* room) {
    LinearInput input(x);
    input.norm = &norm;
    input.room = room;
    return input;
  }
  // Of gate_up [rows, 2 in_features], as activate_gated. `room` [rows, in_features] may be filled with them.
  static LinearInput gated(Activation activation, const float* gate_up, float* room) {
    LinearInput input(gate_up);
    input.gate = activation;
    input.room = room;
    return input;
  }

  bool is_made() const { return norm != nullptr || gate.has_value(); }

  const float* x;
  const NormWeight* norm = nullptr;
  std::optional<Activation> gate;
  float* room = nullptr;
};

// The linear layers of a gated MLP, down(act(gate(x)) * up(x)), and room for what passes between them, which nobody
// else reads: a device may keep it in any form.
struct GatedMlp {
  const LinearWeight& gate_up;  // the first half of its outputs is gate, the second up
  Activation activation;
  const LinearWeight& down;
  float* projected;  // room for [rows, gate_up.out_features]
  float* activated;  // room for [rows, down.in_features]

  LinearInput between() const { return LinearInput::gated(activation, projected, activated); }
};

}  // namespace turbomind
