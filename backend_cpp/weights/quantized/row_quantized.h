// Linear layers stored output by output, as compressed-tensors, ModelOpt and Quark write them
// (weights/quantized/grouped_matrix.h).
//
//   words   codes I32 [out, in / n], n = 32 / bits; value j of a word is in bits j bits .. (j + 1) bits - 1, and is
//           the code plus half its range. Zero points, if any, in the same way: I32 [out / n, groups], n outputs a
//           word. (compressed-tensors, "pack-quantized")
//   bytes   codes I8 [out, in]; zero points, if any, I8 [out, groups]. (compressed-tensors, "int-quantized")
//   float4  codes U8 [out, in / 2]: 4-bit floats E2M1, the first of two in a byte's low half (weights/checkpoint.cc
//   lists
//           their values). Kernels get the values doubled, which are integers, as 8-bit codes, and half the scales:
//           exact, as long as halves hold these. (compressed-tensors, "mxfp4-pack-quantized", "nvfp4-pack-quantized";
//           ModelOpt, NVFP4)
//   scales  [out, groups]: F32, BF16 or F16; of float4, U8 (2^(scale - 127), 255 is NaN) or F8_E4M3. They may be times
//           one number for all or divided by it, F32.
#pragma once

#include "weights/quantized/grouped_matrix.h"

namespace turbomind {

class RowQuantizedMatrix final : public GroupedMatrix {
 public:
  // `expression` is a manifest's operation "row_codes"; `args` are codes, scales and those that `more` names, in its
  // order: "zeros", "groups" (of the inputs, I32 [in]), "factor" or "divisor" (of all scales). Throws Error naming what
  // is wrong.
  RowQuantizedMatrix(const Json& expression, const std::vector<CheckpointTensor>& args);

 private:
  enum class Layout : uint8_t { kWords, kBytes, kFloat4 };

  void read_stored(int first, int count, Slice::Range inputs, uint8_t* quantized) const override;
  uint8_t zero(int group, int output) const override;
  std::shared_ptr<GroupedMatrix> copy() const override { return std::make_shared<RowQuantizedMatrix>(*this); }
  void check_quantized() const;
  void check_zeros() const;
  void read_scales(const CheckpointTensor& scales, float factor);
  // A byte as a code of this many bits; throws Error where it is none.
  uint8_t value_of(std::byte stored) const;

  Layout layout_;
  CheckpointTensor quantized_;
  CheckpointTensor zeros_;  // without data: all in the middle
};

}  // namespace turbomind
