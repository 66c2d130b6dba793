#include "weights/awq_gptq.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "kernels/packed_weight.h"

namespace turbomind {

namespace {

// Which of its word's eight outputs AWQ keeps in bits 4j..4j+3.
constexpr std::array<int, 8> kAwqOrder = {0, 2, 4, 6, 1, 3, 5, 7};
// Where in the word AWQ keeps output j of eight: the inverse of kAwqOrder.
constexpr std::array<int, 8> kAwqPlace = {0, 4, 1, 5, 2, 6, 3, 7};

constexpr int kLargestGroup = 128;  // inputs that share the scale of an activation
constexpr int kBlockTiles = 8;      // decoded at a time: a cache line of AWQ's words

int positive(const Json& number, const char* what) {
  const int64_t value = number.as_int();
  if (value < 1 || value > (1 << 30)) throw invalid_argument(std::string(what) + " is " + std::to_string(value));
  return static_cast<int>(value);
}

void expect_words(const CheckpointTensor& tensor, const char* what, int rows, int columns) {
  if (tensor.dtype != "I32" || tensor.shape != std::vector<int64_t>{rows, columns}) {
    throw invalid_argument(std::string(what) + " must be I32 [" + std::to_string(rows) + ", " +
                           std::to_string(columns) + "]");
  }
}

}  // namespace

AwqGptqMatrix::AwqGptqMatrix(const Json& expression, const std::vector<CheckpointTensor>& args)
    : bits_(positive(expression.at("bits"), "bits")), group_(positive(expression.at("group"), "group")) {
  const std::string& layout = expression.at("layout").as_string();
  if (layout != "awq" && layout != "gptq") throw invalid_argument("unknown layout " + layout);
  layout_ = layout == "awq" ? Layout::kAwq : Layout::kGptq;
  if (bits_ != 4 && (bits_ != 8 || layout_ == Layout::kAwq)) {
    throw invalid_argument(layout + " codes of " + std::to_string(bits_) + " bits are not supported");
  }
  if (expression.at("zeros_less_one").as_bool()) zero_word_ = bits_ == 4 ? 0x11111111u : 0x01010101u;
  const Json::Array& shape = expression.at("shape").as_array();
  if (shape.size() != 2 || args.size() < 3)
    throw invalid_argument("a quantized matrix needs a shape and three tensors");
  out_features_ = positive(shape[0], "the number of outputs");
  in_features_ = positive(shape[1], "the number of inputs");
  packed_codes_ = args[0];
  packed_zeros_ = args[1];
  packed_scales_ = args[2];
  check_sizes();
  read_scales();
  if (args.size() > 3) read_input_order(args[3]);
}

void AwqGptqMatrix::check_sizes() const {
  const int n = values_per_word();
  if (group_ % 8 != 0) throw invalid_argument("groups must be multiples of 8, got " + std::to_string(group_));
  if (out_features_ % n != 0 || in_features_ % n != 0) {
    throw invalid_argument("sizes must be multiples of " + std::to_string(n));
  }
  if (layout_ == Layout::kAwq) {
    expect_words(packed_codes_, "qweight", in_features_, out_features_ / n);
  } else {
    expect_words(packed_codes_, "qweight", in_features_ / n, out_features_);
  }
  expect_words(packed_zeros_, "qzeros", group_count(), out_features_ / n);
  if (packed_scales_.shape != std::vector<int64_t>{group_count(), out_features_}) {
    throw invalid_argument("scales must have the shape [" + std::to_string(group_count()) + ", " +
                           std::to_string(out_features_) + "]");
  }
}

void AwqGptqMatrix::read_scales() {
  std::vector<float> wide(static_cast<size_t>(group_count()) * out_features_);
  copy_values(packed_scales_, wide.data());
  scales_.resize(wide.size());
  for (size_t i = 0; i < wide.size(); ++i) {
    scales_[i] = to_half(wide[i]);
    if (!std::isfinite(to_float(scales_[i]))) {
      throw invalid_argument("scales must be finite halves, found " + std::to_string(wide[i]) + " in group " +
                             std::to_string(i / out_features_) + ", output " + std::to_string(i % out_features_));
    }
  }
}

void AwqGptqMatrix::read_input_order(const CheckpointTensor& groups) {
  if (groups.dtype != "I32" || groups.shape != std::vector<int64_t>{in_features_}) {
    throw invalid_argument("g_idx must be I32 [" + std::to_string(in_features_) + "]");
  }
  std::vector<std::vector<int32_t>> members(static_cast<size_t>(group_count()));
  for (int i = 0; i < in_features_; ++i) {
    const auto group = static_cast<int32_t>(word(groups, i));
    if (group < 0 || group >= group_count()) {
      throw invalid_argument("g_idx must be in 0.." + std::to_string(group_count() - 1) + ", got " +
                             std::to_string(group) + " for input " + std::to_string(i));
    }
    members[static_cast<size_t>(group)].push_back(i);
  }
  std::vector<int32_t> order;
  for (int g = 0; g < group_count(); ++g) {
    const std::vector<int32_t>& inputs = members[static_cast<size_t>(g)];
    const int expected = std::min(group_, in_features_ - g * group_);
    if (static_cast<int>(inputs.size()) != expected) {
      throw invalid_argument("g_idx gives group " + std::to_string(g) + " " + std::to_string(inputs.size()) +
                             " inputs, expected " + std::to_string(expected));
    }
    order.insert(order.end(), inputs.begin(), inputs.end());
  }
  if (std::is_sorted(order.begin(), order.end())) return;
  input_order_ = std::move(order);
  position_.resize(input_order_.size());
  for (int i = 0; i < in_features_; ++i) position_[static_cast<size_t>(input_order_[i])] = i;
}

int AwqGptqMatrix::kernel_group(int stored_group) {
  int group = std::min(kLargestGroup, stored_group) / 8 * 8;
  while (stored_group % group != 0) group -= 8;
  return group;
}

std::shared_ptr<const QuantizedMatrix> AwqGptqMatrix::inputs(const Slice& kept) const {
  std::vector<int32_t> picked = kept.elements();
  const int begin = position_.empty() ? picked.front() : position_[static_cast<size_t>(picked.front())];
  const int end = begin + static_cast<int>(picked.size());
  if (begin % kernel_group(group_) != 0 || end > in_features_) return nullptr;
  for (int i = begin; i < end; ++i) {
    if ((input_order_.empty() ? i : input_order_[static_cast<size_t>(i)]) != picked[static_cast<size_t>(i - begin)]) {
      return nullptr;
    }
  }
  auto result = std::make_shared<AwqGptqMatrix>(*this);
  result->first_input_ = first_input_ + begin;
  result->in_features_ = end - begin;
  if (input_order_.empty()) {
    const int n = layout_ == Layout::kAwq ? 1 : values_per_word();  // inputs in a row of words
    result->packed_codes_ = sliced(packed_codes_, 0, begin / n, (end + n - 1) / n);
  } else {
    result->picked_ = std::move(picked);
    result->input_order_.clear();
    result->position_.clear();
  }
  return result;
}

uint32_t AwqGptqMatrix::word(const CheckpointTensor& tensor, size_t index) const {
  uint32_t value;
  std::memcpy(&value, tensor.data + sizeof(value) * index, sizeof(value));
  return value;
}

uint8_t AwqGptqMatrix::zero(int group, int output) const {
  const int n = values_per_word();
  const int place = layout_ == Layout::kAwq ? kAwqPlace[output % n] : output % n;
  const uint32_t all = word(packed_zeros_, (static_cast<size_t>(group) * out_features_ + output) / n) + zero_word_;
  return static_cast<uint8_t>((all >> (place * bits_)) & ((1u << bits_) - 1));
}

void AwqGptqMatrix::read_codes(int first, int count, uint8_t* codes) const {
  const int n = values_per_word();
  const auto place = [&](int input) { return position_.empty() ? input : position_[static_cast<size_t>(input)]; };
  const auto width = static_cast<size_t>(in_features_);
  if (layout_ == Layout::kAwq) {
    const size_t words = static_cast<size_t>(out_features_) / n;
    for (int input = 0; input < in_features_; ++input) {
      uint8_t* column = codes + place(input);
      for (int w = first / n; w * n < first + count; ++w) {
        const uint32_t all = word(packed_codes_, static_cast<size_t>(input) * words + w);
        for (int j = 0; j < n; ++j) {
          const int row = w * n + kAwqOrder[j] - first;
          if (row >= 0 && row < count) column[row * width] = (all >> (4 * j)) & 15u;
        }
      }
    }
    return;
  }
  const uint32_t mask = (1u << bits_) - 1;
  for (size_t i = 0; i < picked_.size(); ++i) {
    const auto input = static_cast<size_t>(picked_[i]);
    for (int row = 0; row < count; ++row) {
      const uint32_t all = word(packed_codes_, input / n * out_features_ + first + row);
      codes[row * width + i] = (all >> (input % n * bits_)) & mask;
    }
  }
  if (!picked_.empty()) return;
  for (int input = 0; input < in_features_; input += n) {
    for (int row = 0; row < count; ++row) {
      const uint32_t all = word(packed_codes_, static_cast<size_t>(input) / n * out_features_ + first + row);
      for (int j = 0; j < n; ++j) codes[row * width + place(input + j)] = (all >> (j * bits_)) & mask;
    }
  }
}

void AwqGptqMatrix::dequantize(int output, float* destination) const {
  std::vector<uint8_t> codes(static_cast<size_t>(in_features_));
  read_codes(output, 1, codes.data());
  for (int i = 0; i < in_features_; ++i) {
    const int group = group_of(i);
    const int steps = codes[static_cast<size_t>(i)] - zero(group, output);
    destination[input_order_.empty() ? i : input_order_[static_cast<size_t>(i)]] =
        to_float(scale(group, output)) * static_cast<float>(steps);
  }
}

bool AwqGptqMatrix::packs_with(const QuantizedMatrix& other) const {
  const auto* codes = dynamic_cast<const AwqGptqMatrix*>(&other);
  return codes != nullptr && codes->bits_ == bits_ && codes->group_ == group_ && codes->input_order_ == input_order_;
}

void AwqGptqMatrix::read_rows(const std::vector<QuantizedRow>& rows, int first, int last, uint8_t* codes) {
  while (first < last) {
    const QuantizedRow& front = rows[static_cast<size_t>(first)];
    int count = 1;
    while (first + count < last && rows[static_cast<size_t>(first + count)].matrix == front.matrix &&
           rows[static_cast<size_t>(first + count)].output == front.output + count) {
      ++count;
    }
    const auto& matrix = static_cast<const AwqGptqMatrix&>(*front.matrix);
    matrix.read_codes(front.output, count, codes);
    codes += static_cast<size_t>(count) * matrix.in_features_;
    first += count;
  }
}

LinearStorage AwqGptqMatrix::pack(const std::vector<QuantizedRow>& rows, const Loop& loop) const {
  const auto out_features = static_cast<int>(rows.size());
  const PackedShape shape{out_features, in_features_, bits_, kernel_group(group_)};
  LinearStorage storage;
  storage.data = AlignedBuffer(shape.code_bytes());
  storage.scales = AlignedBuffer(shape.scale_count() * sizeof(half));
  storage.zeros = AlignedBuffer(shape.scale_count());
  storage.input_order = AlignedBuffer(input_order_.size() * sizeof(int32_t));
  std::copy(input_order_.begin(), input_order_.end(), storage.input_order.as<int32_t>());

  constexpr int kBlockOutputs = kBlockTiles * kTileOutputs;
  loop((out_features + kBlockOutputs - 1) / kBlockOutputs, [&](int block) {
    const int first = block * kBlockOutputs;
    const int last = std::min(first + kBlockOutputs, out_features);
    const auto width = static_cast<size_t>(in_features_);
    std::vector<uint8_t> codes(kBlockOutputs * width);
    read_rows(rows, first, last, codes.data());
    for (int output = first; output < last; ++output) {
      const QuantizedRow& row = rows[static_cast<size_t>(output)];
      const auto& matrix = static_cast<const AwqGptqMatrix&>(*row.matrix);
      const size_t tile = static_cast<size_t>(output) / kTileOutputs;
      for (int g = 0; g < shape.groups(); ++g) {
        const size_t entry = (tile * shape.groups() + g) * kTileOutputs + output % kTileOutputs;
        const int stored_group = matrix.group_of(g * shape.group);
        storage.scales.as<half>()[entry] = matrix.scale(stored_group, row.output);
        storage.zeros.as<uint8_t>()[entry] = matrix.zero(stored_group, row.output);
      }
    }
    for (int output = first; output < last; output += kTileOutputs) {
      const size_t tile = static_cast<size_t>(output) / kTileOutputs;
      pack_tile(shape, codes.data() + (output - first) * width, std::min(kTileOutputs, last - output),
                storage.data.as<uint8_t>() + tile * shape.groups() * shape.group_bytes());
    }
  });
  storage.set_view(shape);
  return storage;
}

}  // namespace turbomind
