// Linear layers as AWQ and GPTQ checkpoints store them (weights/quantized/grouped_matrix.h).
//
//   AWQ ("gemm", 4 bits)        codes int32 [in, out / 8], zeros int32 [groups, out / 8]. Bits 4j..4j+3 of a word are
//                               output 0, 2, 4, 6, 1, 3, 5, 7 of its eight, for j = 0..7.
//                               (AutoAWQ, awq/modules/linear/gemm.py, from_linear)
//   GPTQ (4 or 8 bits, n a word) codes int32 [in / n, out], zeros int32 [groups, out / n]; value j of a word is in
//   bits
//                               j bits .. (j + 1) bits - 1. Checkpoints of the first format store words of zeros less
//                               one in each value, borrowing across values as words do.
//   GPTQ (3 bits)               the same with 32 values in 3 words, one after the other, and zeros less one in each
//                               value alone. Kernels get them as codes of 4 bits.
//                               (GPTQModel, nn_modules/qlinear and convert_gptq_v1_to_v2_format)
//   both                        scales [groups, out]. GPTQ may name each input's group (g_idx, int32 [in]), when inputs
//                               were quantized in order of importance ("desc_act").
#pragma once

#include "weights/quantized/grouped_matrix.h"

namespace turbomind {

class AwqGptqMatrix final : public GroupedMatrix {
 public:
  // `expression` is a manifest's operation "quantized"; `args` are its tensors codes, zeros, scales and, if given, the
  // inputs' groups. The mapped files must outlive this object. Throws Error naming what is wrong: sizes that contradict
  // each other, scales that are not finite, inputs whose groups are not of the group's size.
  AwqGptqMatrix(const Json& expression, const std::vector<CheckpointTensor>& args);

 private:
  enum class Layout : uint8_t { kAwq, kGptq };

  void read_stored(int first, int count, Slice::Range inputs, uint8_t* quantized) const override;
  uint8_t zero(int group, int output) const override;
  std::shared_ptr<GroupedMatrix> copy() const override { return std::make_shared<AwqGptqMatrix>(*this); }
  void check_sizes(const CheckpointTensor& scales) const;
  // Value `index` of 32 that are in 3 words, `stride` words apart, of which `first` is the first.
  static uint8_t third(const CheckpointTensor& tensor, size_t first, size_t stride, int index);

  Layout layout_;
  bool has_thirds_ = false;  // values of 3 bits
  uint32_t zero_word_ = 0;   // added to each word of zeros
  CheckpointTensor packed_values_;
  CheckpointTensor packed_zeros_;
};

}  // namespace turbomind
