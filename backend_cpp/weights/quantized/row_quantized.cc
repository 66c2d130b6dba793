#include "weights/quantized/row_quantized.h"

#include <cmath>
#include <limits>

#include "base/error.h"

namespace turbomind {

namespace {

// Twice the value of each 4-bit float, alongside the middle of 8-bit codes.
constexpr uint8_t kFloat4[16] = {128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116};

float single_number(const CheckpointTensor& tensor, const std::string& what) {
  if (element_count(tensor.shape) != 1) throw invalid_argument("the " + what + " of all scales must be one number");
  float value = 0;
  copy_values(tensor, &value);
  if (!std::isfinite(value) || value <= 0) {
    throw invalid_argument("the " + what + " of all scales must be a positive number, got " + std::to_string(value));
  }
  return value;
}

}  // namespace

RowQuantizedMatrix::RowQuantizedMatrix(const Json& expression, const std::vector<CheckpointTensor>& args)
    : GroupedMatrix(expression) {
  const std::string& layout = expression.at("layout").as_string();
  if (layout != "words" && layout != "bytes" && layout != "float4") throw invalid_argument("unknown layout " + layout);
  layout_ = layout == "words" ? Layout::kWords : layout == "bytes" ? Layout::kBytes : Layout::kFloat4;
  const Json::Array& more = expression.at("more").as_array();
  if (args.size() != 2 + more.size()) throw invalid_argument("row codes need codes, scales and what `more` names");
  quantized_ = args[0];
  check_quantized();
  float factor = 1;
  for (size_t i = 0; i < more.size(); ++i) {
    const std::string& what = more[i].as_string();
    const CheckpointTensor& tensor = args[2 + i];
    if (what == "zeros") {
      zeros_ = tensor;
      check_zeros();
    } else if (what == "groups") {
      // Tools that keep the order of inputs may write -1 for each.
      if (tensor.bytes < sizeof(int32_t) || static_cast<int32_t>(word(tensor, 0)) != -1) read_input_order(tensor);
    } else if (what == "factor") {
      factor = single_number(tensor, what);
    } else if (what == "divisor") {
      factor = 1 / single_number(tensor, what);
    } else {
      throw invalid_argument("row codes know no " + what);
    }
  }
  read_scales(args[1], factor);
}

void RowQuantizedMatrix::check_quantized() const {
  const int n = values_per_word();
  switch (layout_) {
    case Layout::kWords:
      if (stored_inputs() % n != 0) throw invalid_argument("inputs must be a multiple of " + std::to_string(n));
      return expect(quantized_, "codes", "I32", {out_features(), stored_inputs() / n});
    case Layout::kBytes:
      return expect(quantized_, "codes", "I8", {out_features(), stored_inputs()});
    case Layout::kFloat4:
      if (bits() != 8) throw invalid_argument("4-bit floats become codes of 8 bits");
      if (stored_inputs() % 2 != 0) throw invalid_argument("inputs must be a multiple of 2");
      return expect(quantized_, "codes", quantized_.dtype == "I8" ? "I8" : "U8", {out_features(), stored_inputs() / 2});
  }
}

void RowQuantizedMatrix::check_zeros() const {
  const int n = values_per_word();
  switch (layout_) {
    case Layout::kWords:
      return expect(zeros_, "zero points", "I32", {(out_features() + n - 1) / n, group_count()});
    case Layout::kBytes:
      return expect(zeros_, "zero points", "I8", {out_features(), group_count()});
    case Layout::kFloat4:
      throw invalid_argument("4-bit floats have no zero points");
  }
}

void RowQuantizedMatrix::read_scales(const CheckpointTensor& scales, float factor) {
  const auto groups = static_cast<size_t>(group_count());
  const auto outputs = static_cast<size_t>(out_features());
  expect(scales, "scales", scales.dtype.c_str(), {out_features(), group_count()});
  std::vector<float> stored(groups * outputs);
  const bool is_float4 = layout_ == Layout::kFloat4;
  if (is_float4 && type_bytes(scales.dtype) == 1) {
    for (size_t i = 0; i < stored.size(); ++i) {
      const auto bits = std::to_integer<uint8_t>(scales.data[i]);
      const float power = bits == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, bits - 127);
      stored[i] = scales.dtype == "F8_E4M3" ? to_float(float8{bits}) : power;
    }
  } else {
    copy_values(scales, stored.data());
  }
  std::vector<float> turned(stored.size());
  for (size_t output = 0; output < outputs; ++output) {
    for (size_t g = 0; g < groups; ++g) {
      turned[g * outputs + output] = stored[output * groups + g] * factor * (is_float4 ? 0.5f : 1.0f);
    }
  }
  set_scales(turned);
}

uint8_t RowQuantizedMatrix::value_of(std::byte stored) const {
  const int middle = 1 << (bits() - 1);
  const int q = static_cast<int8_t>(stored) + middle;
  if (q < 0 || q >= 2 * middle) {
    throw invalid_argument("codes must be in " + std::to_string(-middle) + ".." + std::to_string(middle - 1) +
                           ", found " + std::to_string(q - middle));
  }
  return static_cast<uint8_t>(q);
}

uint8_t RowQuantizedMatrix::zero(int group, int output) const {
  const uint8_t middle = static_cast<uint8_t>(1 << (bits() - 1));
  if (zeros_.data == nullptr) return middle;
  const auto groups = static_cast<size_t>(group_count());
  if (layout_ == Layout::kBytes) return value_of(zeros_.data[static_cast<size_t>(output) * groups + group]);
  const int n = values_per_word();
  const uint32_t all = word(zeros_, static_cast<size_t>(output / n) * groups + group);
  return static_cast<uint8_t>((all >> (output % n * bits())) & ((1u << bits()) - 1));
}

void RowQuantizedMatrix::read_stored(int first, int count, Slice::Range inputs, uint8_t* quantized) const {
  const auto stored = static_cast<size_t>(stored_inputs());
  const int n = values_per_word();
  const uint32_t mask = (1u << bits()) - 1;
  for (int output = first; output < first + count; ++output) {
    const auto row = static_cast<size_t>(output) * stored;
    switch (layout_) {
      case Layout::kWords:
        for (int i = inputs.begin; i < inputs.end; i += n) {
          const uint32_t all = word(quantized_, (row + i) / n);
          for (int j = 0; j < n; ++j) *quantized++ = static_cast<uint8_t>((all >> (j * bits())) & mask);
        }
        break;
      case Layout::kBytes:
        for (int i = inputs.begin; i < inputs.end; ++i) *quantized++ = value_of(quantized_.data[row + i]);
        break;
      case Layout::kFloat4:
        for (int i = inputs.begin; i < inputs.end; i += 2) {
          const auto pair = std::to_integer<uint8_t>(quantized_.data[(row + i) / 2]);
          *quantized++ = kFloat4[pair & 15u];
          *quantized++ = kFloat4[pair >> 4];
        }
        break;
    }
  }
}

}  // namespace turbomind
