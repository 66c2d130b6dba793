// A linear layer's weight as checkpoints of 8-bit weights and activations store it: w[o][i] = scale code[o][i], one
// byte a code, where a scale is shared by a block of neighbouring outputs and inputs: one output, the whole matrix, or
// 128 x 128.
//
//   codes   I8 or F8_E4M3 (kernels/types.h) [out, in]
//   scales  F32, BF16, F16, or powers of two (U8 or F8_E8M0: 2^(scale - 127), 255 is no number; MXFP8), one a block:
//           [out / block outputs, in / block inputs], rounded up; where that is one for each output or one in all, of
//           any shape
//
// (DeepSeek-V3, arXiv 2412.19437, 3.3, and its `weight_scale_inv`; compressed-tensors, "int-quantized" and
// "float-quantized"; LMDeploy's smooth_quant, where scales are [out, 1])
#pragma once

#include <vector>

#include "base/json.h"
#include "weights/checkpoint_tensor.h"
#include "weights/quantized_matrix.h"

namespace turbomind {

// Outputs and inputs that share a scale.
struct ScaleBlock {
  int outputs;
  int inputs;
};

class W8A8Matrix final : public QuantizedMatrix {
 public:
  // Codes and scales; mapped files must outlive this object. Throws Error naming what is wrong: types, sizes that
  // contradict each other, scales that are not finite.
  W8A8Matrix(CheckpointTensor quantized, const CheckpointTensor& scales, ScaleBlock block, float divisor = 1);
  // `expression` is a manifest's operation "scaled", with the block and, if scales are to be divided, by what; `args`
  // are its codes and scales.
  W8A8Matrix(const Json& expression, const std::vector<CheckpointTensor>& args);

  int out_features() const override { return out_features_; }
  int in_features() const override { return in_features_; }
  void dequantize(int output, float* destination) const override;
  std::shared_ptr<const QuantizedMatrix> inputs(const Slice& kept) const override;
  // The inputs of a group of the kernels for an expression "scaled" and its codes; 1 for what is refused when it is
  // read.
  static int kernel_group(const Json& expression, const CheckpointTensor& quantized);
  // The same type and groups.
  bool packs_with(const QuantizedMatrix& other) const override;
  LinearStorage pack(const std::vector<QuantizedRow>& rows, bool takes_gguf_blocks, const Loop& loop) const override;

 private:
  bool has_blocks() const { return column_count_ > 1; }  // several scales for an output, one for each group
  int group_count() const { return (in_features_ + group_ - 1) / group_; }
  const uint8_t* row(int output) const;
  float scale(int output, int input) const;
  // One output's codes as kernels take them, and its scales: [groups] relative to `whole`, or `whole` alone.
  void read_row(int output, uint8_t* quantized, float* groups, float& whole) const;

  CheckpointTensor quantized_;
  bool is_float8_ = false;
  int out_features_ = 0;
  int in_features_ = 0;
  int first_input_ = 0;  // of those stored
  int group_ = 0;        // inputs of a group of the kernels
  int column_count_ = 0;
  ScaleBlock block_;
  std::vector<float> scales_;  // [blocks of outputs, column_count_]
};

}  // namespace turbomind
