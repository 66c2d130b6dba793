#include "weights/gguf/matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "kernels/packed_weight.h"

namespace turbomind {

namespace {

int matrix_size(int64_t size) {
  if (size < 1 || size > std::numeric_limits<int>::max()) {
    throw invalid_argument("a matrix has the size " + std::to_string(size));
  }
  return static_cast<int>(size);
}

half finite_half(float value, int output) {
  const half rounded = to_half(value);
  if ((rounded.bits & 0x7C00u) == 0x7C00u) {
    throw invalid_argument("scales and minima must be finite halves, found " + std::to_string(value) + " in output " +
                           std::to_string(output));
  }
  return rounded;
}

}  // namespace

CheckpointTensor affine_blocks(const Json& expression, const std::vector<CheckpointTensor>& args) {
  const int64_t bits = expression.at("bits").as_int(), group = expression.at("group").as_int();
  const int64_t outputs = expression.at("shape").at(0).as_int(), inputs = expression.at("shape").at(1).as_int();
  constexpr int64_t kBlock = GgufMatrix::kInputGroup;
  if (args.size() != 3) throw invalid_argument("an affine matrix needs codes, scales and biases");
  if (bits < 2 || bits > 8 || group < kBlock || group % kBlock != 0 || outputs < 1 || inputs < 1 ||
      inputs % group != 0 || args[0].dtype != "U32" ||
      args[0].shape != std::vector<int64_t>{outputs, inputs * bits / 32}) {
    throw invalid_argument("affine codes must be U32, of 2 to 8 bits, in groups of a multiple of 32 inputs");
  }
  const auto count = static_cast<size_t>(outputs * (inputs / group));
  std::vector<float> numbers[2] = {std::vector<float>(count), std::vector<float>(count)};  // scales, biases
  for (size_t i = 0; i < 2; ++i) {
    if (args[i + 1].bytes != count * type_bytes(args[i + 1].dtype)) {
      throw invalid_argument("scales and biases of affine codes must be one a group");
    }
    copy_values(args[i + 1], numbers[i].data());
  }
  const size_t room = bits <= 4 ? 20 : 36;  // bytes of a block
  const auto blocks = static_cast<size_t>(outputs * inputs / kBlock);
  auto bytes = std::make_shared<std::vector<std::byte>>(blocks * room);
  const uint32_t mask = (1u << bits) - 1;
  for (size_t b = 0; b < blocks; ++b) {
    std::byte* block = bytes->data() + b * room;
    for (size_t i = 0; i < 2; ++i) {
      const size_t entry = b * kBlock / static_cast<size_t>(group);
      const half value = finite_half(numbers[i][entry], static_cast<int>(entry / (inputs / group)));
      std::memcpy(block + 2 * i, &value, sizeof(value));
    }
    for (size_t i = 0; i < kBlock; ++i) {
      const size_t bit = (b * kBlock + i) * static_cast<size_t>(bits);
      uint64_t words = 0;
      std::memcpy(&words, args[0].data + bit / 32 * 4, std::min<size_t>(8, args[0].bytes - bit / 32 * 4));
      const auto q = static_cast<std::byte>((words >> (bit % 32)) & mask);
      if (bits > 4) {
        block[4 + i] = q;
      } else {
        block[4 + i % 16] |= i < 16 ? q : q << 4;
      }
    }
  }
  return {bits <= 4 ? "Q4_1" : "AFFINE8", {outputs, inputs}, bytes->data(), bytes->size(), bytes};
}

GgufMatrix::GgufMatrix(CheckpointTensor blocks) : blocks_(std::move(blocks)), format_(gguf_blocks(blocks_.dtype)) {
  if (format_ == nullptr) throw invalid_argument("weights of type " + blocks_.dtype + " are not supported");
  if (blocks_.shape.size() != 2 || blocks_.shape[1] % format_->inputs != 0) {
    throw invalid_argument(blocks_.dtype + " needs a matrix whose inputs are a multiple of " +
                           std::to_string(format_->inputs));
  }
  out_features_ = matrix_size(blocks_.shape[0]);
  in_features_ = stored_inputs_ = matrix_size(blocks_.shape[1]);
  inputs_ = {{0, in_features_}};
}

bool GgufMatrix::shares_scales() const {
  return format_->scale_at >= 0 && std::ranges::all_of(inputs_, [&](const Slice::Range& range) {
           return range.begin % format_->inputs == 0 && range.end % format_->inputs == 0;
         });
}

GgufMatrix::Row GgufMatrix::decode(int output) const {
  Row row;
  for (const Slice::Range& range : inputs_) append(output, range, row);
  return row;
}

void GgufMatrix::append(int output, Slice::Range range, Row& row) const {
  const int first_block = range.begin / format_->inputs;
  const int last_block = (range.end + format_->inputs - 1) / format_->inputs;
  const auto groups = static_cast<size_t>(format_->inputs / format_->group);
  const auto inputs = static_cast<size_t>(format_->inputs);
  const auto count = static_cast<size_t>(last_block - first_block);
  const size_t begin = row.quantized.size();
  const size_t first_group = row.scales.size();
  row.quantized.resize(begin + count * inputs);
  row.scales.resize(first_group + count * groups);
  if (format_->has_mins()) row.mins.resize(row.scales.size());
  const std::byte* block = blocks_.data + (static_cast<size_t>(output) * (stored_inputs_ / format_->inputs) +
                                           static_cast<size_t>(first_block)) *
                                              static_cast<size_t>(format_->bytes);
  for (size_t i = 0; i < count; ++i, block += format_->bytes) {
    const size_t group = first_group + i * groups;
    format_->decode(block, row.quantized.data() + begin + i * inputs, row.scales.data() + group,
                    row.mins.empty() ? nullptr : row.mins.data() + group);
    if (format_->scale_at >= 0) row.shared_scales.push_back(half_at(block + format_->scale_at));
    if (format_->min_at >= 0) row.shared_mins.push_back(-half_at(block + format_->min_at));
  }
  // The range begins and ends within blocks.
  const int before = range.begin - first_block * format_->inputs;
  const int size = range.end - range.begin;
  const auto keep = [](auto& values, size_t end, int skipped, int kept) {
    if (values.empty()) return;
    const auto at = values.begin() + static_cast<std::ptrdiff_t>(end);
    values.erase(at, at + skipped);
    values.resize(end + static_cast<size_t>(kept));
  };
  keep(row.quantized, begin, before, size);
  keep(row.scales, first_group, before / format_->group, size / format_->group);
  keep(row.mins, first_group, before / format_->group, size / format_->group);
}

void GgufMatrix::dequantize(int output, float* destination) const {
  const Row row = decode(output);
  const uint8_t* quantized = row.quantized.data();
  for (size_t group = 0; group < row.scales.size(); ++group) {
    const float scale = row.scales[group];
    for (int i = 0; i < format_->group; ++i, ++quantized, ++destination) {
      *destination = format_->has_mins() ? scale * static_cast<float>(*quantized) + row.mins[group]
                                         : scale * static_cast<float>(*quantized - format_->zero);
    }
  }
}

std::shared_ptr<const QuantizedMatrix> GgufMatrix::inputs(const Slice& kept) const {
  auto result = std::make_shared<GgufMatrix>(*this);
  result->inputs_.clear();
  result->in_features_ = kept.size();
  for (const Slice::Range& range : kept.ranges()) {
    if (range.begin % kInputGroup != 0 || range.end % kInputGroup != 0 || range.begin >= range.end) return nullptr;
    int first = 0;  // of one of our ranges, among the inputs of this matrix
    for (const Slice::Range& inputs : inputs_) {
      const int begin = std::max(range.begin, first);
      const int end = std::min(range.end, first + inputs.end - inputs.begin);
      if (begin < end) result->inputs_.push_back({inputs.begin + begin - first, inputs.begin + end - first});
      first += inputs.end - inputs.begin;
    }
  }
  return result->inputs_.empty() ? nullptr : result;
}

bool GgufMatrix::packs_with(const QuantizedMatrix& other) const {
  const auto* blocks = dynamic_cast<const GgufMatrix*>(&other);
  return blocks != nullptr && blocks->in_features_ == in_features_;
}

LinearStorage GgufMatrix::pack(const std::vector<QuantizedRow>& rows, bool takes_gguf_blocks, const Loop& loop) const {
  PackedShape shape{static_cast<int>(rows.size()), in_features_, format_->bits, format_->group};
  bool needs_mins = false;
  for (const QuantizedRow& row : rows) {
    const GgufBlocks& format = *static_cast<const GgufMatrix&>(*row.matrix).format_;
    shape.bits = std::max(shape.bits, format.bits);
    shape.group = std::min(shape.group, format.group);
    needs_mins = needs_mins || format.has_mins();
  }
  if (shape.bits == 5 && shape.group % shape.unit() != 0) shape.bits = 6;
  if (!takes_gguf_blocks && shape.rest_bits() != 0) shape.bits = 8;
  const bool shares_scales = std::ranges::all_of(rows, [&](const QuantizedRow& row) {
    const auto& matrix = static_cast<const GgufMatrix&>(*row.matrix);
    return matrix.shares_scales() && matrix.has_mins() == needs_mins;
  });
  if (takes_gguf_blocks && shares_scales) shape.scale_groups = format_->inputs / shape.group;
  LinearStorage storage;
  storage.data = AlignedBuffer(shape.quantized_bytes());
  storage.scales = AlignedBuffer(shape.scale_bytes());
  storage.mins = AlignedBuffer(needs_mins ? shape.scale_bytes() : 0);
  // Writes the scale or minimum of a row of a tile whose groups begin at `first`; `shared`: those of the row's blocks.
  const auto put = [&](half* halves, size_t first, int group, int r, float value, const std::vector<float>& shared,
                       int output) {
    const size_t entry = (first + static_cast<size_t>(group)) * kTileOutputs + static_cast<size_t>(r);
    if (shape.scale_groups == 1) {
      halves[entry] = finite_half(value, output);
      return;
    }
    const auto block = static_cast<size_t>(group / shape.scale_groups);
    const float factor = shared[block];
    if (group % shape.scale_groups == 0) {
      const size_t blocks = first / static_cast<size_t>(shape.scale_groups) + block;
      halves[blocks * kTileOutputs + static_cast<size_t>(r)] = finite_half(factor, output);
    }
    const_cast<int8_t*>(group_factors(shape, halves))[entry] =
        static_cast<int8_t>(factor == 0 ? 0 : std::lrint(value / factor));
  };
  loop(shape.tiles(), [&](int tile) {
    const int first = tile * kTileOutputs;
    const int count = std::min(kTileOutputs, shape.out_features - first);
    const auto width = static_cast<size_t>(in_features_);
    const size_t groups = static_cast<size_t>(tile) * shape.groups();
    std::vector<uint8_t> quantized(static_cast<size_t>(count) * width);
    for (int r = 0; r < count; ++r) {
      const QuantizedRow& source = rows[static_cast<size_t>(first + r)];
      const auto& matrix = static_cast<const GgufMatrix&>(*source.matrix);
      const Row row = matrix.decode(source.output);
      const int zero = matrix.format_->zero;
      // Without minima the code of 0 is the kernels' own.
      const int shift = needs_mins ? 0 : shape.zero_point() - zero;
      for (size_t i = 0; i < width; ++i) {
        quantized[static_cast<size_t>(r) * width + i] = static_cast<uint8_t>(row.quantized[i] + shift);
      }
      for (int g = 0; g < shape.groups(); ++g) {
        const auto stored = static_cast<size_t>(g * shape.group / matrix.format_->group);
        const float scale = row.scales[stored];
        put(storage.scales.as<half>(), groups, g, r, scale, row.shared_scales, source.output);
        if (!needs_mins) continue;
        const float min = !row.mins.empty() ? row.mins[stored]
                                            : to_float(finite_half(scale, source.output)) * static_cast<float>(-zero);
        put(storage.mins.as<half>(), groups, g, r, min, row.shared_mins, source.output);
      }
    }
    pack_tile(shape, quantized.data(), count, storage.data.as<uint8_t>() + groups * shape.group_bytes());
  });
  storage.set_view(shape);
  return storage;
}

}  // namespace turbomind
