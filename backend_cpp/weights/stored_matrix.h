// A linear layer's weight as a checkpoint stores it in 8 or 4 bits.
#pragma once

#include <memory>
#include <vector>

#include "weights/extent.h"
#include "weights/linear_storage.h"

namespace turbomind {

class StoredMatrix;

// One output of a matrix, which must outlive this.
struct StoredRow {
  const StoredMatrix* matrix;
  int output;
};

class StoredMatrix {
 public:
  virtual ~StoredMatrix() = default;

  virtual int out_features() const = 0;
  virtual int in_features() const = 0;
  // The numbers of one output, [in], inputs in their own order.
  virtual void dequantize(int output, float* destination) const = 0;

  // The inputs, group by group; empty when they lie so already.
  virtual std::vector<int32_t> input_order() const { return {}; }
  // The matrix of some inputs alone, which are whole groups of the kernels, one behind another; null where they are
  // not.
  virtual std::shared_ptr<const StoredMatrix> inputs(const Extent& kept) const = 0;

  // Whether the kernels can multiply with outputs of both as one weight.
  virtual bool packs_with(const StoredMatrix& other) const = 0;
  // These outputs, all of matrices that pack with this one, in the order that kernels read (kernels/packed_weight.h),
  // without loss.
  virtual LinearStorage pack(const std::vector<StoredRow>& rows, const Loop& loop) const = 0;

 protected:
  StoredMatrix() = default;
  StoredMatrix(const StoredMatrix&) = default;
  StoredMatrix& operator=(const StoredMatrix&) = delete;
};

}  // namespace turbomind
