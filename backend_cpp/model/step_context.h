// Shared state of the decoder's parts during a step.
#pragma once

#include <utility>

#include "device/operators.h"
#include "weights/linear_storage.h"

namespace turbomind {

class AdapterTable;
class ImageTokens;

// Workspace of steps: float32 [rows, width].
struct FloatRows : AlignedBuffer {
  FloatRows() = default;
  explicit FloatRows(AlignedBuffer rows) : AlignedBuffer(std::move(rows)) {}
  FloatRows(Operators& ops, int rows, int width) : AlignedBuffer(float_buffer(ops, rows, width)) {}
  operator float*() const { return as<float>(); }
  operator TypedRows() const { return as<float>(); }
  operator LinearInput() const { return as<float>(); }
};

struct StepContext {
  Operators& ops;
  int rows;
  const AdapterTable* adapters = nullptr;  // null: no row has one
  bool has_barriers = false;               // whether other ranks run the same step
  const ImageTokens* images = nullptr;     // null: no row takes the weights of images

  // Heads of the step's rows.
  HeadsView of(HeadsView heads) const {
    heads.rows = rows;
    return heads;
  }
  // y = x W^T + b, or with accumulate y +=, of the layer with what the rows' adapters add to it; rows of images take
  // the weights that the layer has for them.
  void linear(const LinearStorage& layer, const LinearInput& input, float* y, bool accumulate) const;
};

}  // namespace turbomind
