// A matrix of a GGUF file: [out, in], each row a run of blocks (weights/gguf/blocks.h).
//
// Kernels get the codes as they are, and scales as halves: exact for formats with a scale a block (Q4_0, Q4_1, Q5_0,
// Q5_1, Q8_0, IQ4_NL). Where a scale is a product (K-quants, IQ4_XS), the CPU's kernels get both factors, others the
// product, rounded to 11 bits. Where outputs of several formats make one weight (q, k and v of Q4_K and Q6_K, say), it
// has the widest codes and the smallest groups of them, products for scales, and minima if any has.
#pragma once

#include "base/json.h"
#include "weights/checkpoint_tensor.h"
#include "weights/gguf/blocks.h"
#include "weights/quantized_matrix.h"
#include "weights/slice.h"

namespace turbomind {

// Blocks of a matrix that MLX stores (`mlx.core.quantize`, mode "affine"): w = scale code + bias in groups of inputs.
// `expression` is a manifest's operation "affine"; `args` are codes U32 [out, in bits / 32], an input's bits after
// those of the one before, and scales and biases [out, in / group]. The blocks have the codes as they are, of up to 4
// bits as Q4_1, and the other numbers as halves. Throws Error for sizes and types that do not fit.
CheckpointTensor affine_blocks(const Json& expression, const std::vector<CheckpointTensor>& args);

class GgufMatrix final : public QuantizedMatrix {
 public:
  static constexpr int kInputGroup = 32;  // inputs that are never divided

  // `blocks` are of a type that gguf_blocks() knows; the mapped file must outlive this object. Throws Error for what is
  // no matrix of whole blocks.
  explicit GgufMatrix(CheckpointTensor blocks);

  const CheckpointTensor& tensor() const { return blocks_; }
  int out_features() const override { return out_features_; }
  int in_features() const override { return in_features_; }
  void dequantize(int output, float* destination) const override;
  std::shared_ptr<const QuantizedMatrix> inputs(const Slice& kept) const override;
  bool has_mins() const override { return format_->has_mins(); }
  // Any other of GGUF.
  bool packs_with(const QuantizedMatrix& other) const override;
  // Throws Error for a scale or minimum that is no finite half.
  LinearStorage pack(const std::vector<QuantizedRow>& rows, bool takes_gguf_blocks, const Loop& loop) const override;

 private:
  struct Row {
    std::vector<uint8_t> quantized;  // [in]
    std::vector<float> scales;       // [in / group of the format]
    std::vector<float> mins;         // as many, or none
    // Halves that the scales and minima of a block are multiples of, if shares_scales().
    std::vector<float> shared_scales;
    std::vector<float> shared_mins;
  };

  bool shares_scales() const;
  Row decode(int output) const;
  void append(int output, Slice::Range range, Row& row) const;

  CheckpointTensor blocks_;
  const GgufBlocks* format_;
  int out_features_;
  int in_features_;
  int stored_inputs_;
  std::vector<Slice::Range> inputs_;  // of those stored, in the order of this matrix
};

}  // namespace turbomind
