#include "weights/quantized/awq_gptq.h"

#include <array>

#include "base/error.h"

namespace turbomind {

namespace {

// Which of its word's eight outputs AWQ keeps in bits 4j..4j+3.
constexpr std::array<int, 8> kAwqOrder = {0, 2, 4, 6, 1, 3, 5, 7};
// Where in the word AWQ keeps output j of eight: the inverse of kAwqOrder.
constexpr std::array<int, 8> kAwqIndex = {0, 4, 1, 5, 2, 6, 3, 7};

}  // namespace

AwqGptqMatrix::AwqGptqMatrix(const Json& expression, const std::vector<CheckpointTensor>& args)
    : GroupedMatrix(expression) {
  const std::string& layout = expression.at("layout").as_string();
  if (layout != "awq" && layout != "gptq") throw invalid_argument("unknown layout " + layout);
  layout_ = layout == "awq" ? Layout::kAwq : Layout::kGptq;
  if (bits() == 8 && layout_ == Layout::kAwq) throw invalid_argument("awq codes of 8 bits are not supported");
  if (expression.at("zeros_less_one").as_bool()) zero_word_ = bits() == 4 ? 0x11111111u : 0x01010101u;
  if (const Json* stored = expression.find("stored_bits")) {
    has_thirds_ = layout_ == Layout::kGptq && bits() == 4 && stored->as_int() == 3;
    if (!has_thirds_) throw invalid_argument("only gptq codes of 3 bits are stored in fewer bits than the kernels'");
    zero_word_ &= 1u;
  }
  if (args.size() < 3) throw invalid_argument("a quantized matrix needs three tensors");
  packed_values_ = args[0];
  packed_zeros_ = args[1];
  check_sizes(args[2]);
  std::vector<float> scales(static_cast<size_t>(group_count()) * out_features());
  copy_values(args[2], scales.data());
  set_scales(scales);
  if (args.size() > 3) read_input_order(args[3]);
}

uint8_t AwqGptqMatrix::third(const CheckpointTensor& tensor, size_t first, size_t stride, int index) {
  const int bit = 3 * index;
  const size_t at = first + bit / 32 * stride;
  const uint32_t high = bit % 32 > 29 ? word(tensor, at + stride) << (32 - bit % 32) : 0;
  return static_cast<uint8_t>((word(tensor, at) >> (bit % 32) | high) & 7u);
}

void AwqGptqMatrix::check_sizes(const CheckpointTensor& scales) const {
  const int outputs = out_features();
  if (has_thirds_) {
    if (outputs % 32 != 0 || stored_inputs() % 32 != 0) throw invalid_argument("sizes must be multiples of 32");
    expect(packed_values_, "qweight", "I32", {stored_inputs() / 32 * 3, outputs});
    expect(packed_zeros_, "qzeros", "I32", {group_count(), outputs / 32 * 3});
    return expect(scales, "scales", scales.dtype.c_str(), {group_count(), outputs});
  }
  const int n = values_per_word();
  if (outputs % n != 0 || stored_inputs() % n != 0) {
    throw invalid_argument("sizes must be multiples of " + std::to_string(n));
  }
  if (layout_ == Layout::kAwq) {
    expect(packed_values_, "qweight", "I32", {stored_inputs(), outputs / n});
  } else {
    expect(packed_values_, "qweight", "I32", {stored_inputs() / n, outputs});
  }
  expect(packed_zeros_, "qzeros", "I32", {group_count(), outputs / n});
  expect(scales, "scales", scales.dtype.c_str(), {group_count(), outputs});
}

uint8_t AwqGptqMatrix::zero(int group, int output) const {
  if (has_thirds_) {
    const auto first = (static_cast<size_t>(group) * out_features() + output) / 32 * 3;
    return (third(packed_zeros_, first, 1, output % 32) + zero_word_) & 7u;
  }
  const int n = values_per_word();
  const int index = layout_ == Layout::kAwq ? kAwqIndex[output % n] : output % n;
  const uint32_t all = word(packed_zeros_, (static_cast<size_t>(group) * out_features() + output) / n) + zero_word_;
  return static_cast<uint8_t>((all >> (index * bits())) & ((1u << bits()) - 1));
}

void AwqGptqMatrix::read_stored(int first, int count, Slice::Range inputs, uint8_t* quantized) const {
  const int n = values_per_word();
  const auto width = static_cast<size_t>(inputs.end - inputs.begin);
  const auto outputs = static_cast<size_t>(out_features());
  if (layout_ == Layout::kAwq) {
    for (int input = inputs.begin; input < inputs.end; ++input) {
      uint8_t* column = quantized + (input - inputs.begin);
      for (int w = first / n; w * n < first + count; ++w) {
        const uint32_t all = word(packed_values_, static_cast<size_t>(input) * (outputs / n) + w);
        for (int j = 0; j < n; ++j) {
          const int row = w * n + kAwqOrder[j] - first;
          if (row >= 0 && row < count) column[row * width] = (all >> (4 * j)) & 15u;
        }
      }
    }
    return;
  }
  if (has_thirds_) {
    for (int row = 0; row < count; ++row) {
      for (int input = inputs.begin; input < inputs.end; ++input) {
        *quantized++ =
            third(packed_values_, static_cast<size_t>(input) / 32 * 3 * outputs + first + row, outputs, input % 32);
      }
    }
    return;
  }
  const uint32_t mask = (1u << bits()) - 1;
  for (int input = inputs.begin; input < inputs.end; input += n) {
    for (int row = 0; row < count; ++row) {
      const uint32_t all = word(packed_values_, static_cast<size_t>(input) / n * outputs + first + row);
      uint8_t* values = quantized + row * width + (input - inputs.begin);
      for (int j = 0; j < n; ++j) values[j] = (all >> (j * bits())) & mask;
    }
  }
}

}  // namespace turbomind
