#include "weights/codes/awq_gptq.h"

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
  if (args.size() < 3) throw invalid_argument("a quantized matrix needs three tensors");
  packed_values_ = args[0];
  packed_zeros_ = args[1];
  check_sizes(args[2]);
  std::vector<float> scales(static_cast<size_t>(group_count()) * out_features());
  copy_values(args[2], scales.data());
  set_scales(scales);
  if (args.size() > 3) read_input_order(args[3]);
}

void AwqGptqMatrix::check_sizes(const CheckpointTensor& scales) const {
  const int n = values_per_word();
  const int outputs = out_features();
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
