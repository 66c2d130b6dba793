#include "weights/quantized/table_matrix.h"

#include <string>

#include "base/error.h"

namespace turbomind {

namespace {

int positive(const Json& number, const char* what) {
  const int64_t value = number.as_int();
  if (value < 1 || value > (1 << 30)) throw invalid_argument(std::string(what) + " is " + std::to_string(value));
  return static_cast<int>(value);
}

std::vector<float> floats(const CheckpointTensor& tensor, size_t count, const char* what) {
  if (tensor.dtype != "F32" || tensor.bytes != count * sizeof(float)) {
    throw invalid_argument(std::string(what) + " must be " + std::to_string(count) + " numbers of F32");
  }
  std::vector<float> values(count);
  copy_values(tensor, values.data());
  return values;
}

constexpr size_t kBytesOfScale = 256;

}  // namespace

TableMatrix::TableMatrix(const Json& expression, const std::vector<CheckpointTensor>& args)
    : out_features_(positive(expression.at("shape").at(0), "the number of outputs")),
      in_features_(positive(expression.at("shape").at(1), "the number of inputs")),
      block_(positive(expression.at("block"), "a block")) {
  if (args.size() != 3 && args.size() != 5) throw invalid_argument("a table needs codes, entries and scales");
  const size_t count = static_cast<size_t>(out_features_) * in_features_;
  const size_t blocks = (count + block_ - 1) / block_;
  quantized_ = args[0];
  if (quantized_.dtype != "U8" || quantized_.bytes != (count + 1) / 2) {
    throw invalid_argument("codes must be U8, two in a byte");
  }
  table_ = floats(args[1], 16, "the table");
  if (args.size() == 3) {
    scales_ = floats(args[2], blocks, "scales");
    return;
  }
  const auto outer = static_cast<size_t>(positive(expression.at("outer_block"), "a block of scales"));
  if (args[2].dtype != "U8" || args[2].bytes != blocks)
    throw invalid_argument("quantized scales must be U8, one a block");
  const std::vector<float> entries = floats(args[3], kBytesOfScale, "the table of scales");
  const std::vector<float> steps = floats(args[4], (blocks + outer - 1) / outer, "scales of scales");
  const auto offset = static_cast<float>(expression.at("offset").as_double());
  scales_.resize(blocks);
  for (size_t i = 0; i < blocks; ++i) {
    scales_[i] = entries[std::to_integer<size_t>(args[2].data[i])] * steps[i / outer] + offset;
  }
}

void TableMatrix::dequantize(int output, float* destination) const {
  const size_t first = static_cast<size_t>(output) * in_features_;
  for (size_t i = first; i < first + in_features_; ++i) {
    const auto pair = std::to_integer<unsigned>(quantized_.data[i / 2]);
    *destination++ = table_[i % 2 == 0 ? pair >> 4 : pair & 15u] * scales_[i / block_];
  }
}

LinearStorage TableMatrix::pack(const std::vector<QuantizedRow>&, bool, const Loop&) const {
  throw invalid_argument("no kernel multiplies with entries of a table");
}

}  // namespace turbomind
