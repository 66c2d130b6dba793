#include "weights/quantized/grouped_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "kernels/packed_weight.h"

namespace turbomind {

namespace {

constexpr int kLargestGroup = 128;  // inputs that share the scale of an activation
constexpr int kBlockTiles = 8;      // decoded at a time: a cache line of AWQ's words

int positive(const Json& number, const char* what) {
  const int64_t value = number.as_int();
  if (value < 1 || value > (1 << 30)) throw invalid_argument(std::string(what) + " is " + std::to_string(value));
  return static_cast<int>(value);
}

}  // namespace

GroupedMatrix::GroupedMatrix(const Json& expression)
    : bits_(positive(expression.at("bits"), "bits")), group_(positive(expression.at("group"), "group")) {
  const std::string& layout = expression.at("layout").as_string();
  if (bits_ != 4 && bits_ != 8) {
    throw invalid_argument(layout + " codes of " + std::to_string(bits_) + " bits are not supported");
  }
  if (group_ % 8 != 0) throw invalid_argument("groups must be multiples of 8, got " + std::to_string(group_));
  const Json::Array& shape = expression.at("shape").as_array();
  if (shape.size() != 2) throw invalid_argument("a quantized matrix needs a shape of two sizes");
  out_features_ = positive(shape[0], "the number of outputs");
  in_features_ = stored_inputs_ = positive(shape[1], "the number of inputs");
}

void GroupedMatrix::expect(const CheckpointTensor& tensor, const char* what, const char* dtype,
                           const std::vector<int64_t>& shape) {
  if (tensor.dtype == dtype && tensor.shape == shape) return;
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  throw invalid_argument(std::string(what) + " must be " + dtype + " [" + text + "]");
}

uint32_t GroupedMatrix::word(const CheckpointTensor& tensor, size_t index) {
  uint32_t value;
  std::memcpy(&value, tensor.data + sizeof(value) * index, sizeof(value));
  return value;
}

void GroupedMatrix::set_scales(const std::vector<float>& scales) {
  scales_.resize(scales.size());
  for (size_t i = 0; i < scales.size(); ++i) {
    scales_[i] = to_half(scales[i]);
    if (!std::isfinite(to_float(scales_[i]))) {
      throw invalid_argument("scales must be finite halves, found " + std::to_string(scales[i]) + " in group " +
                             std::to_string(i / out_features_) + ", output " + std::to_string(i % out_features_));
    }
  }
}

void GroupedMatrix::read_input_order(const CheckpointTensor& groups) {
  expect(groups, "g_idx", "I32", {in_features_});
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
  if (!std::is_sorted(order.begin(), order.end())) order_ = std::move(order);
}

int GroupedMatrix::kernel_group(int stored_group) {
  int group = std::min(kLargestGroup, stored_group) / 8 * 8;
  while (stored_group % group != 0) group -= 8;
  return group;
}

std::shared_ptr<const QuantizedMatrix> GroupedMatrix::inputs(const Slice& kept) const {
  if (is_cut_ && !order_.empty()) return nullptr;
  std::vector<int32_t> picked = kept.elements();
  const auto position = std::find(order_.begin(), order_.end(), picked.front());
  const int begin = order_.empty() ? picked.front() : static_cast<int>(position - order_.begin());
  const int end = begin + static_cast<int>(picked.size());
  if (begin % kernel_group(group_) != 0 || end > in_features_) return nullptr;
  for (int i = begin; i < end; ++i) {
    if ((order_.empty() ? i : order_[static_cast<size_t>(i)]) != picked[static_cast<size_t>(i - begin)]) return nullptr;
  }
  std::shared_ptr<GroupedMatrix> result = copy();
  result->first_input_ = first_input_ + begin;
  result->in_features_ = end - begin;
  result->is_cut_ = true;
  if (!order_.empty()) result->order_ = std::move(picked);
  return result;
}

void GroupedMatrix::read_quantized(int first, int count, uint8_t* quantized) const {
  if (order_.empty()) return read_stored(first, count, {first_input_, first_input_ + in_features_}, quantized);
  const auto stored = static_cast<size_t>(stored_inputs_);
  std::vector<uint8_t> all(static_cast<size_t>(count) * stored);
  read_stored(first, count, {0, stored_inputs_}, all.data());
  for (int row = 0; row < count; ++row) {
    const uint8_t* from = all.data() + static_cast<size_t>(row) * stored;
    for (const int32_t input : order_) *quantized++ = from[input];
  }
}

void GroupedMatrix::dequantize(int output, float* destination) const {
  std::vector<uint8_t> quantized(static_cast<size_t>(in_features_));
  read_quantized(output, 1, quantized.data());
  const bool is_in_order = order_.empty() || is_cut_;
  for (int i = 0; i < in_features_; ++i) {
    const int group = group_of(i);
    const int steps = quantized[static_cast<size_t>(i)] - zero(group, output);
    destination[is_in_order ? i : order_[static_cast<size_t>(i)]] =
        to_float(scale(group, output)) * static_cast<float>(steps);
  }
}

bool GroupedMatrix::packs_with(const QuantizedMatrix& other) const {
  const auto* quantized = dynamic_cast<const GroupedMatrix*>(&other);
  return quantized != nullptr && quantized->bits_ == bits_ && quantized->group_ == group_ &&
         quantized->input_order() == input_order();
}

void GroupedMatrix::read_rows(const std::vector<QuantizedRow>& rows, int first, int last, uint8_t* quantized) {
  while (first < last) {
    const QuantizedRow& front = rows[static_cast<size_t>(first)];
    int count = 1;
    while (first + count < last && rows[static_cast<size_t>(first + count)].matrix == front.matrix &&
           rows[static_cast<size_t>(first + count)].output == front.output + count) {
      ++count;
    }
    const auto& matrix = static_cast<const GroupedMatrix&>(*front.matrix);
    matrix.read_quantized(front.output, count, quantized);
    quantized += static_cast<size_t>(count) * matrix.in_features_;
    first += count;
  }
}

LinearStorage GroupedMatrix::pack(const std::vector<QuantizedRow>& rows, bool /*takes_gguf_blocks*/,
                                  const Loop& loop) const {
  const auto out_features = static_cast<int>(rows.size());
  const PackedShape shape{out_features, in_features_, bits_, kernel_group(group_)};
  const std::vector<int32_t> order = input_order();
  LinearStorage storage;
  storage.data = AlignedBuffer(shape.quantized_bytes());
  storage.scales = AlignedBuffer(shape.scale_count() * sizeof(half));
  storage.zeros = AlignedBuffer(shape.scale_count());
  storage.input_order = AlignedBuffer(order.size() * sizeof(int32_t));
  std::copy(order.begin(), order.end(), storage.input_order.as<int32_t>());

  constexpr int kBlockOutputs = kBlockTiles * kTileOutputs;
  loop((out_features + kBlockOutputs - 1) / kBlockOutputs, [&](int block) {
    const int first = block * kBlockOutputs;
    const int last = std::min(first + kBlockOutputs, out_features);
    const auto width = static_cast<size_t>(in_features_);
    std::vector<uint8_t> quantized(kBlockOutputs * width);
    read_rows(rows, first, last, quantized.data());
    for (int output = first; output < last; ++output) {
      const QuantizedRow& row = rows[static_cast<size_t>(output)];
      const auto& matrix = static_cast<const GroupedMatrix&>(*row.matrix);
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
      pack_tile(shape, quantized.data() + (output - first) * width, std::min(kTileOutputs, last - output),
                storage.data.as<uint8_t>() + tile * shape.groups() * shape.group_bytes());
    }
  });
  storage.set_view(shape);
  return storage;
}

}  // namespace turbomind
