// Linear layers as bitsandbytes stores them in 4 bits (NF4 and FP4; Dettmers et al., 2023, arXiv 2305.14314): a weight
// is an entry of a table times the largest magnitude of its block, which runs on from row to row. No kernel multiplies
// with such codes, so they become numbers, some rows at a time.
//
//   codes    U8 [out in / 2, 1], the first of two in a byte's high half
//   table    F32 [16]
//   scales   F32, one a block; or, quantized once more, U8: an entry of a table F32 [256] times an F32 scale for each
//            block of blocks, plus one number for all
#pragma once

#include <memory>
#include <vector>

#include "base/json.h"
#include "weights/checkpoint_tensor.h"
#include "weights/quantized_matrix.h"

namespace turbomind {

class TableMatrix final : public QuantizedMatrix {
 public:
  // `expression` is a manifest's operation "table"; `args` are codes, table, scales and, of quantized scales, their
  // table and scales. Throws Error for sizes and types that do not fit.
  TableMatrix(const Json& expression, const std::vector<CheckpointTensor>& args);

  int out_features() const override { return out_features_; }
  int in_features() const override { return in_features_; }
  void dequantize(int output, float* destination) const override;
  std::shared_ptr<const QuantizedMatrix> inputs(const Slice&) const override { return nullptr; }
  bool packs_with(const QuantizedMatrix&) const override { return false; }
  LinearStorage pack(const std::vector<QuantizedRow>&, bool, const Loop&) const override;

 private:
  CheckpointTensor quantized_;
  std::vector<float> table_;
  std::vector<float> scales_;
  int out_features_;
  int in_features_;
  int block_;
};

}  // namespace turbomind
