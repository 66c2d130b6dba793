// A linear layer's weight as codes of 4 or 8 bits: w[o][i] = scale[g][o] (code[o][i] - zero[g][o]), where g is the
// group of neighbouring inputs that i belongs to. How a checkpoint packs them is defined by the classes that derive
// from this.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "kernels/types.h"
#include "weights/checkpoint_tensor.h"
#include "weights/quantized_matrix.h"

namespace turbomind {

class GroupedMatrix : public QuantizedMatrix {
 public:
  int out_features() const override { return out_features_; }
  int in_features() const override { return in_features_; }
  void dequantize(int output, float* destination) const override;
  std::vector<int32_t> input_order() const override { return is_cut_ ? std::vector<int32_t>{} : order_; }
  std::shared_ptr<const QuantizedMatrix> inputs(const Slice& kept) const override;
  // The group of the kernels for a stored one: its largest divisor that they take.
  static int kernel_group(int stored_group);
  // The same bits, groups and order of inputs.
  bool packs_with(const QuantizedMatrix& other) const override;
  // A group of many inputs becomes several of the kernel's with the same scale, so that activations are rounded in
  // groups of at most 128.
  LinearStorage pack(const std::vector<QuantizedRow>& rows, bool takes_gguf_blocks, const Loop& loop) const override;

 protected:
  // Reads `bits`, `group` and `shape` of a manifest's operation. Throws Error for sizes that are invalid.
  explicit GroupedMatrix(const Json& expression);

  int bits() const { return bits_; }
  int group() const { return group_; }
  int stored_inputs() const { return stored_inputs_; }
  int group_count() const { return (stored_inputs_ + group_ - 1) / group_; }
  int values_per_word() const { return 32 / bits_; }
  // Scales [groups, out], which must be finite as halves.
  void set_scales(const std::vector<float>& scales);
  // Which group each input belongs to: I32 [in].
  void read_input_order(const CheckpointTensor& groups);
  static void expect(const CheckpointTensor& tensor, const char* what, const char* dtype,
                     const std::vector<int64_t>& shape);
  static uint32_t word(const CheckpointTensor& tensor, size_t index);

  // Codes of outputs [first, first + count), one in a byte: [count, inputs], for a range of the stored inputs that
  // begins and ends at multiples of 8 or the end.
  virtual void read_stored(int first, int count, Slice::Range inputs, uint8_t* quantized) const = 0;
  virtual uint8_t zero(int group, int output) const = 0;
  virtual std::shared_ptr<GroupedMatrix> copy() const = 0;

 private:
  // As read_stored, the inputs that this matrix has, in its order.
  void read_quantized(int first, int count, uint8_t* quantized) const;
  // Codes of rows [first, last), [last - first, in]; neighbours are decoded together.
  static void read_rows(const std::vector<QuantizedRow>& rows, int first, int last, uint8_t* quantized);
  // The group that an input, in this matrix's order, belongs to.
  int group_of(int input) const { return (first_input_ + input) / group_; }
  half scale(int group, int output) const { return scales_[static_cast<size_t>(group) * out_features_ + output]; }

  int bits_;
  int group_;
  int out_features_;
  int in_features_;
  int stored_inputs_;
  int first_input_ = 0;         // of those stored, in the order they had before they were cut
  std::vector<half> scales_;    // [groups, out]
  std::vector<int32_t> order_;  // the inputs among those stored, group by group; empty when they are so already
  bool is_cut_ = false;
};

}  // namespace turbomind
