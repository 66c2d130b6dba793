#include "weights/w8a8.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "base/error.h"

namespace turbomind {

namespace {

int checked_size(int64_t size, const char* what) {
  if (size < 1 || size > (1 << 30)) throw invalid_argument(std::string(what) + " is " + std::to_string(size));
  return static_cast<int>(size);
}

// A weight with one scale for each output is padded to whole groups and has activations rounded in them.
int group_of_row(int in_features, bool is_float8) {
  constexpr int kFloat8Group = 32;  // activations are not rounded in groups
  constexpr int kGroups[] = {64, 32};
  if (is_float8) return kFloat8Group;
  for (const int group : kGroups) {
    if (in_features % group == 0) return group;
  }
  return std::min((in_features + 7) / 8 * 8, kGroups[0]);
}

ScaleBlock block_of(const Json& expression) {
  const Json& sizes = expression.at("block");
  return {checked_size(sizes.at(0).as_int(), "the outputs of a block"),
          checked_size(sizes.at(1).as_int(), "the inputs of a block")};
}

float divisor_of(const Json& expression) {
  const Json* divisor = expression.find("divisor");
  return divisor == nullptr ? 1.0f : static_cast<float>(divisor->as_double());
}

float power_of_two(std::byte scale) {
  const int exponent = std::to_integer<int>(scale);
  return exponent == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, exponent - 127);
}

const CheckpointTensor& argument(const std::vector<CheckpointTensor>& args, size_t index) {
  if (args.size() != 2) throw invalid_argument("a scaled matrix needs codes and scales");
  return args[index];
}

}  // namespace

W8A8Matrix::W8A8Matrix(const Json& expression, const std::vector<CheckpointTensor>& args)
    : W8A8Matrix(argument(args, 0), argument(args, 1), block_of(expression), divisor_of(expression)) {}

W8A8Matrix::W8A8Matrix(CheckpointTensor quantized, const CheckpointTensor& scales, ScaleBlock block, float divisor)
    : quantized_(std::move(quantized)), block_(block) {
  is_float8_ = quantized_.dtype == "F8_E4M3";
  if ((!is_float8_ && quantized_.dtype != "I8") || quantized_.shape.size() != 2) {
    throw invalid_argument("codes must be an I8 or F8_E4M3 matrix, got " + quantized_.dtype + " of " +
                           std::to_string(quantized_.shape.size()) + " dimensions");
  }
  out_features_ = checked_size(quantized_.shape[0], "the number of outputs");
  in_features_ = checked_size(quantized_.shape[1], "the number of inputs");
  column_count_ = (in_features_ + block_.inputs - 1) / block_.inputs;
  group_ = has_blocks() ? block_.inputs : group_of_row(in_features_, is_float8_);
  if (has_blocks() && (!is_float8_ || block_.inputs % 8 != 0)) {
    throw invalid_argument("blocks of " + std::to_string(block_.inputs) + " inputs are not supported for " +
                           quantized_.dtype + " codes: only for F8_E4M3, in multiples of 8");
  }
  const int rows = (out_features_ + block_.outputs - 1) / block_.outputs;
  const size_t count = static_cast<size_t>(rows) * column_count_;
  const size_t stored = scales.bytes / std::max<size_t>(type_bytes(scales.dtype), 1);
  if (stored != count) {
    throw invalid_argument("there must be " + std::to_string(count) + " scales, got " + std::to_string(stored));
  }
  scales_.resize(count);
  if (scales.dtype == "U8" || scales.dtype == "F8_E8M0") {
    std::transform(scales.data, scales.data + count, scales_.begin(), power_of_two);
  } else {
    copy_values(scales, scales_.data());
  }
  for (float& scale : scales_) scale /= divisor;
  for (size_t i = 0; i < count; ++i) {
    if (std::isfinite(scales_[i])) continue;
    throw invalid_argument("scales must be finite, found " + std::to_string(scales_[i]) + " for the block of output " +
                           std::to_string(i / column_count_ * block_.outputs) + ", input " +
                           std::to_string(i % column_count_ * block_.inputs));
  }
}

int W8A8Matrix::kernel_group(const Json& expression, const CheckpointTensor& quantized) {
  if (quantized.shape.size() != 2) return 1;
  const int inputs = checked_size(quantized.shape[1], "the number of inputs");
  const int block = block_of(expression).inputs;
  return block < inputs ? block : group_of_row(inputs, quantized.dtype == "F8_E4M3");
}

std::shared_ptr<const QuantizedMatrix> W8A8Matrix::inputs(const Slice& kept) const {
  const auto [begin, end] = kept.ranges().front();
  if (kept.ranges().size() > 1 || begin % group_ != 0) return nullptr;
  auto result = std::make_shared<W8A8Matrix>(*this);
  result->first_input_ = first_input_ + begin;
  result->in_features_ = end - begin;
  return result;
}

const uint8_t* W8A8Matrix::row(int output) const {
  const auto stored_inputs = static_cast<size_t>(quantized_.shape[1]);
  return reinterpret_cast<const uint8_t*>(quantized_.data) + static_cast<size_t>(output) * stored_inputs + first_input_;
}

float W8A8Matrix::scale(int output, int input) const {
  return scales_[static_cast<size_t>(output / block_.outputs) * column_count_ + (first_input_ + input) / block_.inputs];
}

void W8A8Matrix::dequantize(int output, float* destination) const {
  const uint8_t* quantized = row(output);
  for (int i = 0; i < in_features_; ++i) {
    const float value =
        is_float8_ ? to_float(float8{quantized[i]}) : static_cast<float>(static_cast<int8_t>(quantized[i]));
    destination[i] = scale(output, i) * value;
  }
}

bool W8A8Matrix::packs_with(const QuantizedMatrix& other) const {
  const auto* bytes = dynamic_cast<const W8A8Matrix*>(&other);
  return bytes != nullptr && bytes->is_float8_ == is_float8_ && bytes->has_blocks() == has_blocks() &&
         bytes->group_ == group_;
}

void W8A8Matrix::read_row(int output, uint8_t* quantized, float* groups, float& whole) const {
  const uint8_t* stored = row(output);
  if (!is_float8_) {
    for (int i = 0; i < in_features_; ++i)
      quantized[i] = static_cast<uint8_t>(stored[i] ^ 0x80u);  // 128 stands for zero
    whole = scale(output, 0);
    return;
  }
  std::copy_n(stored, in_features_, quantized);
  // Kernels know no codes that are not numbers; the scale says it for them.
  const auto checked = [&](float scale, int first, int last) {
    const bool has_nan = std::any_of(stored + first, stored + last, [](uint8_t one) { return float8{one}.is_nan(); });
    return has_nan ? std::numeric_limits<float>::quiet_NaN() : scale;
  };
  if (!has_blocks()) {
    whole = checked(scale(output, 0), 0, in_features_);
    return;
  }
  // A power of two for all keeps the scales of blocks within [-1, 1], in which kernels may round them to 16 bits.
  float largest = 0;
  for (int g = 0; g < group_count(); ++g) largest = std::max(largest, std::fabs(scale(output, g * group_)));
  int exponent = 0;
  std::frexp(largest, &exponent);
  whole = std::ldexp(1.0f, std::clamp(exponent, -126, 127));
  for (int g = 0; g < group_count(); ++g) {
    const int first = g * group_;
    groups[g] = checked(scale(output, first) / whole, first, std::min(first + group_, in_features_));
  }
}

LinearStorage W8A8Matrix::pack(const std::vector<QuantizedRow>& rows, bool /*takes_gguf_blocks*/,
                               const Loop& loop) const {
  const auto out_features = static_cast<int>(rows.size());
  const PackedShape shape{out_features, in_features_, 8, group_, is_float8_};
  LinearStorage storage;
  storage.data = AlignedBuffer(shape.quantized_bytes());
  storage.output_scales = AlignedBuffer(static_cast<size_t>(shape.tiles()) * kTileOutputs * sizeof(float));
  if (has_blocks()) storage.block_scales = AlignedBuffer(shape.scale_count() * sizeof(float));
  loop(shape.tiles(), [&](int tile) {
    const int first = tile * kTileOutputs;
    const int count = std::min(kTileOutputs, out_features - first);
    const auto width = static_cast<size_t>(in_features_);
    const size_t first_group = static_cast<size_t>(tile) * shape.groups();
    std::vector<uint8_t> quantized(kTileOutputs * width);
    std::vector<float> groups(static_cast<size_t>(shape.groups()));
    for (int r = 0; r < kTileOutputs; ++r) {
      float whole = 0;
      if (r < count) {
        const QuantizedRow& row = rows[static_cast<size_t>(first + r)];
        static_cast<const W8A8Matrix&>(*row.matrix)
            .read_row(row.output, quantized.data() + r * width, groups.data(), whole);
      } else {
        std::fill(groups.begin(), groups.end(), 0.0f);
      }
      storage.output_scales.as<float>()[first + r] = whole;
      for (int g = 0; has_blocks() && g < shape.groups(); ++g) {
        storage.block_scales.as<float>()[(first_group + g) * kTileOutputs + r] = groups[static_cast<size_t>(g)];
      }
    }
    pack_tile(shape, quantized.data(), count, storage.data.as<uint8_t>() + first_group * shape.group_bytes());
  });
  storage.set_view(shape);
  return storage;
}

}  // namespace turbomind
