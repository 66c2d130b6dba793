// Sources of the rows that a linear layer multiplies: matrices as they are, their norms, or the gated activation
// between the projections of an MLP. Made where they are read, they need not pass through memory.
#pragma once

#include <cstddef>
#include <optional>

#include "kernels/activation.h"
#include "kernels/norm.h"
#include "kernels/typed_rows.h"

namespace turbomind {

struct LinearWeight;

struct LinearInput {
  // [rows, in_features]
  LinearInput(const float* rows) : x(rows) {}
  // Of one of the types that the layer reads (LinearTypes).
  LinearInput(const ConstTypedRows& rows) : x(rows) {}

  // Of x [rows, in_features]. `workspace` of that size may be filled with them.
  static LinearInput normed(const NormWeight& norm, const float* x, float* workspace) {
    LinearInput input(x);
    input.norm = &norm;
    input.workspace = workspace;
    return input;
  }
  // Of gate_up [rows, 2 in_features], as activate_gated. `workspace` [rows, in_features] may be filled with them.
  static LinearInput gated(Activation activation, const float* gate_up, float* workspace) {
    LinearInput input(gate_up);
    input.gate = activation;
    input.workspace = workspace;
    return input;
  }

  bool is_made() const { return norm != nullptr || gate.has_value(); }
  bool is_float32() const { return !is_made() && x.type == DType::kFloat32; }
  // Those from row `first` on; they are of `inputs` inputs.
  LinearInput from_row(int first, int inputs) const {
    LinearInput rest = *this;
    rest.x = x.from(static_cast<size_t>(first) * inputs * (gate.has_value() ? 2 : 1));
    return rest;
  }

  ConstTypedRows x;  // float32 where they are a norm's
  const NormWeight* norm = nullptr;
  std::optional<Activation> gate;
  const float* bias = nullptr;  // [columns of x], to be added to x where it is gated; null: 0
  float* workspace = nullptr;
};

// Types that a linear layer reads and writes in addition to float32, for a number of rows.
struct LinearTypes {
  // Of rows as they are: the type that it would round them to.
  DType rows = DType::kFloat32;
  // Of results that nothing is added to; a layer with a bias has none. kFloat16 is of y / kHalfRange (the device's), so
  // y may be up to 2^20, and one under 1e-3 is off by up to 2^-21 instead of 2^-11 |y|; kBFloat16 is off by up to
  // 2^-9 |y|. It holds a multiple of 16 rows.
  DType result = DType::kFloat32;
  // Whether it makes norms and activations as it reads what they are made of, which may have the type of any layer's
  // results where it is gated.
  bool makes_rows = false;
};

// The linear layers of a gated MLP, down(act(gate(x)) * up(x)), and workspace for what passes between them, which
// nobody else reads: a device may keep it in any form.
struct GatedMlp {
  const LinearWeight& gate_up;  // the first half of its outputs is gate, the second up
  Activation activation;
  const LinearWeight& down;
  float* projected;  // workspace [rows, gate_up.out_features]
  float* activated;  // workspace [rows, down.in_features]

  LinearInput between() const { return LinearInput::gated(activation, projected, activated); }
};

}  // namespace turbomind
