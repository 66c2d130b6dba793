// A linear layer's weight as AWQ and GPTQ checkpoints store it: w[o][i] = scale[g][o] (code[o][i] - zero[g][o]), where
// g is the group of neighbouring inputs that i belongs to.
//
//   AWQ ("gemm", 4 bits)        codes int32 [in, out / 8], zeros int32 [groups, out / 8]. Bits 4j..4j+3 of a word are
//                               output 0, 2, 4, 6, 1, 3, 5, 7 of its eight, for j = 0..7.
//                               (AutoAWQ, awq/modules/linear/gemm.py, from_linear)
//   GPTQ (4 or 8 bits, n a word) codes int32 [in / n, out], zeros int32 [groups, out / n]; value j of a word lies in
//   bits
//                               j bits .. (j + 1) bits - 1. Checkpoints of the first format store words of zeros less
//                               one in each value, borrowing across values as words do.
//                               (GPTQModel, nn_modules/qlinear and convert_gptq_v1_to_v2_format)
//   both                        scales [groups, out]. GPTQ may name each input's group (g_idx, int32 [in]), when inputs
//                               were quantized in order of importance ("desc_act").
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "kernels/types.h"
#include "weights/checkpoint_tensor.h"
#include "weights/quantized_matrix.h"

namespace turbomind {

class AwqGptqMatrix final : public QuantizedMatrix {
 public:
  // `expression` is a manifest's operation "quantized"; `args` are its tensors codes, zeros, scales and, if given, the
  // inputs' groups. The mapped files must outlive this object. Throws Error naming what is wrong: sizes that contradict
  // each other, scales that are not finite, inputs whose groups are not of the group's size.
  AwqGptqMatrix(const Json& expression, const std::vector<CheckpointTensor>& args);

  int out_features() const override { return out_features_; }
  int in_features() const override { return in_features_; }
  void dequantize(int output, float* destination) const override;
  std::vector<int32_t> input_order() const override { return input_order_; }
  std::shared_ptr<const QuantizedMatrix> inputs(const Slice& kept) const override;
  // The group of the kernels for a stored one: its largest divisor that they take.
  static int kernel_group(int stored_group);
  // The same bits, groups and order of inputs.
  bool packs_with(const QuantizedMatrix& other) const override;
  // A group of many inputs becomes several of the kernel's with the same scale, so that activations are rounded in
  // groups of at most 128.
  LinearStorage pack(const std::vector<QuantizedRow>& rows, const Loop& loop) const override;

 private:
  enum class Layout : uint8_t { kAwq, kGptq };

  // Codes of outputs [first, first + count), one in a byte: [count, in], inputs in the order of input_order_.
  void read_codes(int first, int count, uint8_t* codes) const;
  // Codes of rows [first, last), [last - first, in]; neighbours are decoded together.
  static void read_rows(const std::vector<QuantizedRow>& rows, int first, int last, uint8_t* codes);
  // The group that an input, in the order of input_order_, belongs to.
  int group_of(int input) const { return (first_input_ + input) / group_; }
  half scale(int group, int output) const { return scales_[static_cast<size_t>(group) * out_features_ + output]; }
  uint8_t zero(int group, int output) const;
  int values_per_word() const { return 32 / bits_; }
  int group_count() const { return (in_features_ + group_ - 1) / group_; }
  uint32_t word(const CheckpointTensor& tensor, size_t index) const;
  void check_sizes() const;
  void read_scales();
  void read_input_order(const CheckpointTensor& groups);

  Layout layout_;
  int bits_;
  int group_;
  uint32_t zero_word_ = 0;  // added to each word of zeros
  int out_features_;
  int in_features_;
  int first_input_ = 0;          // of those that the stored scales and zeros are for, in the order they had
  std::vector<int32_t> picked_;  // the inputs, among the stored codes; empty when they are all of these
  CheckpointTensor packed_codes_;
  CheckpointTensor packed_zeros_;
  CheckpointTensor packed_scales_;
  std::vector<half> scales_;          // [groups, out]
  std::vector<int32_t> input_order_;  // the inputs, group by group; empty when they lie so already
  std::vector<int32_t> position_;     // of each input in input_order_; empty when that is
};

}  // namespace turbomind
