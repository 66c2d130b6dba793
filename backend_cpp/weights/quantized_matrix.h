// Quantized weight of a linear layer (8 to 4 bits), as the checkpoint stores it.
#pragma once

#include <memory>
#include <vector>

#include "weights/linear_storage.h"
#include "weights/slice.h"

namespace turbomind {

class QuantizedMatrix;

// One output of a matrix, which must outlive this.
struct QuantizedRow {
  const QuantizedMatrix* matrix;
  int output;
};

class QuantizedMatrix {
 public:
  virtual ~QuantizedMatrix() = default;

  virtual int out_features() const = 0;
  virtual int in_features() const = 0;
  // The numbers of one output, [in], inputs in their own order.
  virtual void dequantize(int output, float* destination) const = 0;

  // The inputs, group by group; empty when they are so already.
  virtual std::vector<int32_t> input_order() const { return {}; }
  // The matrix of some inputs alone, which are whole groups of the kernels, one after another; null where they are
  // not.
  virtual std::shared_ptr<const QuantizedMatrix> inputs(const Slice& kept) const = 0;

  // Whether groups have minima, which not every device multiplies with.
  virtual bool has_mins() const { return false; }
  // Whether the kernels can multiply with outputs of both as one weight.
  virtual bool packs_with(const QuantizedMatrix& other) const = 0;
  // These outputs, all of matrices that pack with this one, in the order that kernels read (kernels/packed_weight.h),
  // without loss. takes_gguf_blocks: as WeightOptions; else codes of 5 and 6 bits have 8.
  virtual LinearStorage pack(const std::vector<QuantizedRow>& rows, bool takes_gguf_blocks, const Loop& loop) const = 0;

 protected:
  QuantizedMatrix() = default;
  QuantizedMatrix(const QuantizedMatrix&) = default;
  QuantizedMatrix& operator=(const QuantizedMatrix&) = delete;
};

}  // namespace turbomind
