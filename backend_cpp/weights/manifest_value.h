// Value of an expression of manifest.json: numbers, or outputs of a matrix that is stored as codes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/json.h"
#include "weights/checkpoint_tensor.h"
#include "weights/linear_storage.h"
#include "weights/quantized_matrix.h"
#include "weights/slice.h"

namespace turbomind {

class ManifestValue {
 public:
  explicit ManifestValue(CheckpointTensor numbers) : tensor_(std::move(numbers)) {}
  explicit ManifestValue(std::shared_ptr<const QuantizedMatrix> quantized);

  // Null where the value is numbers.
  const QuantizedMatrix* quantized() const { return quantized_.get(); }
  std::vector<int64_t> shape() const;
  // Of codes: which of their outputs row `row` is.
  int output(int row) const;

  // Some of the first dimension.
  ManifestValue rows(Slice::Range range) const;
  // Some columns of a matrix. Codes become numbers unless these are whole groups of the kernels, one after another.
  ManifestValue inputs(const Slice& kept) const;

  // The value as numbers; a copy where it is codes.
  CheckpointTensor numbers() const;

 private:
  friend ManifestValue rearranged(const Json& operation, const std::vector<ManifestValue>& parts);

  // The numbers; or, of codes, I32 [..., 1]: the output of each row.
  CheckpointTensor tensor_;
  std::shared_ptr<const QuantizedMatrix> quantized_;
};

// Applies the operation slice, permute or reshape to parts joined along dimension 0. A matrix of codes stays one as
// long as whole rows move; else it becomes numbers. Throws Error for what does not fit the shape.
ManifestValue rearranged(const Json& operation, const std::vector<ManifestValue>& parts);

// From a checkpoint's codes to the order the kernels read (kernels/packed_weight.h), without loss.

// Whether the kernels can multiply with these parts of a matrix as they are stored: all are codes that pack together,
// and have minima only where the device takes those.
bool can_pack(const std::vector<ManifestValue>& parts, bool takes_gguf_blocks);

// Packs matrices joined by output.
LinearStorage pack_quantized(const std::vector<ManifestValue>& parts, bool takes_gguf_blocks, const Loop& loop);

}  // namespace turbomind
