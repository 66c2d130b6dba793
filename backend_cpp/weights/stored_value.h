// What an expression of manifest.json stands for: numbers, or outputs of a matrix that is stored as codes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/json.h"
#include "weights/extent.h"
#include "weights/stored_matrix.h"
#include "weights/stored_tensor.h"

namespace turbomind {

class StoredValue {
 public:
  explicit StoredValue(StoredTensor numbers) : tensor_(std::move(numbers)) {}
  explicit StoredValue(std::shared_ptr<const StoredMatrix> codes);

  // Null where the value is numbers.
  const StoredMatrix* codes() const { return codes_.get(); }
  std::vector<int64_t> shape() const;
  // Of codes: which of their outputs row `row` is.
  int output(int row) const;

  // Some of the first dimension.
  StoredValue rows(Extent::Range range) const;
  // Some columns of a matrix. Codes become numbers unless these are whole groups of the kernels, one behind another.
  StoredValue inputs(const Extent& kept) const;

  // The value as numbers; a copy where it is codes.
  StoredTensor numbers() const;

 private:
  friend StoredValue rearranged(const Json& operation, const std::vector<StoredValue>& parts);

  // The numbers; or, of codes, I32 [..., 1]: the output of each row.
  StoredTensor tensor_;
  std::shared_ptr<const StoredMatrix> codes_;
};

// Applies the operation slice, permute or reshape to parts joined along dimension 0. A matrix of codes stays one as
// long as whole rows move; else it becomes numbers. Throws Error for what does not fit the shape.
StoredValue rearranged(const Json& operation, const std::vector<StoredValue>& parts);

}  // namespace turbomind
