// What the rows that a linear layer multiplies are made of: matrices as they are, their norms, or the gated activation
// between the projections of an MLP. Made where they are read, they need not pass through memory.
#pragma once

#include <cstddef>
#include <optional>

#include "kernels/activation.h"
#include "kernels/norm.h"

namespace turbomind {

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

}  // namespace turbomind
