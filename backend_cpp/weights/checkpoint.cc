#include "weights/checkpoint.h"

#include <fcntl.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "weights/gguf/matrix.h"
#include "weights/quantized/awq_gptq.h"
#include "weights/quantized/row_quantized.h"
#include "weights/quantized/table_matrix.h"
#include "weights/w8a8.h"

namespace turbomind {

namespace {

// MXFP4 (OCP Microscaling Formats 1.0, 5.2): 4-bit floats, 32 of which share a power of two.
//
//   codes   U8 [..., blocks, 16]   value 2 j of a block in the low half of byte j, value 2 j + 1 in the high half;
//                                  a code is sign, two bits of exponent, one of mantissa: 0, .5, 1, 1.5, 2, 3, 4, 6
//   scales  U8 [..., blocks]       2^(scale - 127); 255 is NaN

constexpr int kBlockBytes = 16;
constexpr int kNoNumber = 255;
constexpr float kMagnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

// BF16 [..., 32 blocks]; exact, but for values beyond bfloat16's range. Throws Error for shapes that do not fit.
CheckpointTensor decode_mxfp4(const CheckpointTensor& quantized, const CheckpointTensor& scales) {
  std::vector<int64_t> expected = scales.shape;
  expected.push_back(kBlockBytes);
  if (quantized.dtype != "U8" || scales.dtype != "U8" || scales.shape.empty() || quantized.shape != expected) {
    throw invalid_argument("mxfp4 needs U8 codes [..., blocks, 16] and U8 scales [..., blocks]");
  }
  auto bytes = std::make_shared<std::vector<std::byte>>(quantized.bytes * 2 * sizeof(bf16));
  auto* out = reinterpret_cast<bf16*>(bytes->data());
  bf16 values[16];
  for (size_t block = 0; block < scales.bytes; ++block) {
    const int scale = std::to_integer<int>(scales.data[block]);
    const float step = scale == kNoNumber ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, scale - 127);
    for (int q = 0; q < 16; ++q) values[q] = to_bf16((q < 8 ? step : -step) * kMagnitudes[q % 8]);
    for (size_t i = block * kBlockBytes; i < (block + 1) * kBlockBytes; ++i) {
      const int pair = std::to_integer<int>(quantized.data[i]);
      *out++ = values[pair & 15];
      *out++ = values[pair >> 4];
    }
  }
  std::vector<int64_t> shape = scales.shape;
  shape.back() *= 2 * kBlockBytes;
  return {"BF16", std::move(shape), bytes->data(), bytes->size(), bytes};
}

// F32 of one value.
CheckpointTensor constant(const Json& expression) {
  CheckpointTensor tensor{"F32", {}, nullptr, 0, nullptr};
  for (const Json& size : expression.at("shape").as_array()) tensor.shape.push_back(size.as_int());
  const std::vector<float> numbers(static_cast<size_t>(element_count(tensor.shape)),
                                   static_cast<float>(expression.at("value").as_double()));
  const std::span<const std::byte> bytes = std::as_bytes(std::span(numbers));
  const auto owned = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
  tensor.data = owned->data();
  tensor.bytes = owned->size();
  tensor.owner = owned;
  return tensor;
}

// matrix + up down, of which outputs are computed as they are read.
class AddedProduct final : public QuantizedMatrix {
 public:
  explicit AddedProduct(const std::vector<ManifestValue>& parts) : matrix_(parts.at(0)) {
    std::vector<std::vector<int64_t>> shapes;
    for (const ManifestValue& part : parts) shapes.push_back(part.shape());
    const bool are_matrices = std::ranges::all_of(shapes, [](const auto& shape) { return shape.size() == 2; });
    if (!are_matrices || shapes[0] != std::vector{shapes[1][0], shapes[2][1]} || shapes[1][1] != shapes[2][0]) {
      throw invalid_argument("add_product needs matrices [out, in], [out, rank] and [rank, in]");
    }
    up_ = floats(parts[1]);
    down_ = floats(parts[2]);
  }

  int out_features() const override { return static_cast<int>(matrix_.shape()[0]); }
  int in_features() const override { return static_cast<int>(matrix_.shape()[1]); }
  void dequantize(int output, float* destination) const override {
    copy_values(matrix_.rows({output, output + 1}).numbers(), destination);
    const auto width = static_cast<size_t>(in_features());
    const size_t rank = down_.size() / width;
    const float* factors = up_.data() + static_cast<size_t>(output) * rank;
    for (size_t r = 0; r < rank; ++r) {
      for (size_t i = 0; i < width; ++i) destination[i] += factors[r] * down_[r * width + i];
    }
  }
  std::shared_ptr<const QuantizedMatrix> inputs(const Slice&) const override { return nullptr; }
  bool packs_with(const QuantizedMatrix&) const override { return false; }
  LinearStorage pack(const std::vector<QuantizedRow>&, bool, const Loop&) const override {
    throw internal_error("a product has no codes to pack");
  }

 private:
  static std::vector<float> floats(const ManifestValue& part) {
    const CheckpointTensor numbers = part.numbers();
    std::vector<float> values(static_cast<size_t>(element_count(numbers.shape)));
    copy_values(numbers, values.data());
    return values;
  }

  ManifestValue matrix_;
  std::vector<float> up_;
  std::vector<float> down_;
};

constexpr size_t kHeaderLimit = 100u << 20;
constexpr int64_t kGroupLimit = 1 << 30;
constexpr int kDequantizedRows = 256;

const MappedFile& mapped_of(const std::variant<SafetensorsFile, GgufFile>& file) {
  return std::visit([](const auto& one) -> const MappedFile& { return one.mapped(); }, file);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

int common_group(int a, int b) {
  const int64_t group = std::lcm(int64_t{a}, int64_t{b});
  if (group > kGroupLimit) throw invalid_argument("groups of " + std::to_string(a) + " and " + std::to_string(b));
  return static_cast<int>(group);
}

// A slice's rows of parts that are joined along dimension 0.
std::vector<ManifestValue> kept_rows(const std::vector<ManifestValue>& parts, const Slice& slice) {
  std::vector<ManifestValue> kept;
  for (const Slice::Range& range : slice.ranges()) {
    int first = 0;
    for (const ManifestValue& part : parts) {
      const int last = first + static_cast<int>(part.shape()[0]);
      const Slice::Range inside{std::max(range.begin, first), std::min(range.end, last)};
      if (inside.begin < inside.end) kept.push_back(part.rows({inside.begin - first, inside.end - first}));
      first = last;
    }
  }
  return kept;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  // Layout: uint64 header length, JSON header, tensor bytes. https://github.com/huggingface/safetensors#format
  uint64_t header_bytes = 0;
  if (file_.size() < sizeof(header_bytes)) throw invalid_argument(path + " is truncated");
  std::memcpy(&header_bytes, file_.data(), sizeof(header_bytes));
  if (header_bytes > kHeaderLimit || sizeof(header_bytes) + header_bytes > file_.size()) {
    throw invalid_argument(path + " is truncated or not a safetensors file");
  }
  const std::byte* payload = file_.data() + sizeof(header_bytes) + header_bytes;
  const size_t payload_bytes = file_.size() - sizeof(header_bytes) - header_bytes;
  try {
    const auto* text = reinterpret_cast<const char*>(file_.data()) + sizeof(header_bytes);
    const Json header = Json::parse(std::string_view(text, header_bytes));
    for (const auto& [name, entry] : header.as_object()) {
      if (name == "__metadata__") continue;
      CheckpointTensor tensor{entry.at("dtype").as_string(), {}, nullptr, 0, nullptr};
      for (const Json& size : entry.at("shape").as_array()) tensor.shape.push_back(size.as_int());
      const auto elements = static_cast<size_t>(element_count(tensor.shape));
      const Json& offsets = entry.at("data_offsets");
      const auto begin = static_cast<size_t>(offsets.at(0).as_int());
      const auto end = static_cast<size_t>(offsets.at(1).as_int());
      if (end < begin || end > payload_bytes)
        throw invalid_argument("tensor " + name + " is beyond the end: the file is truncated");
      tensor.data = payload + begin;
      tensor.bytes = end - begin;
      if (const size_t size = type_bytes(tensor.dtype); size != 0 && tensor.bytes != elements * size) {
        throw invalid_argument("tensor " + name + " has " + std::to_string(tensor.bytes) +
                               " bytes, which does not fit its shape");
      }
      tensors_.emplace(name, std::move(tensor));
    }
  } catch (const Error& error) {
    throw invalid_argument(path + ": " + error.what());
  }
}

const CheckpointTensor& SafetensorsFile::tensor(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) throw invalid_argument(file_.path() + " has no tensor " + name);
  return it->second;
}

Checkpoint::Checkpoint(const std::string& directory) : manifest_(Json::parse_file(directory + "/manifest.json")) {
  for (const Json& file : manifest_.at("files").as_array()) {
    const std::string path = (std::filesystem::path(directory) / file.as_string()).string();
    if (GgufFile::is_one(path)) {
      files_.emplace_back(std::in_place_type<GgufFile>, path);
    } else {
      files_.emplace_back(std::in_place_type<SafetensorsFile>, path);
    }
  }
}

CheckpointTensor Checkpoint::loaded(const Json& expression) const {
  const auto number = static_cast<size_t>(expression.at("file").as_int());
  if (number >= files_.size()) throw invalid_argument("file index out of range");
  if (const auto* gguf = std::get_if<GgufFile>(&files_[number])) return gguf->tensor(expression);
  return std::get<SafetensorsFile>(files_[number]).tensor(expression.at("name").as_string());
}

bool Checkpoint::has(const std::string& name) const {
  return manifest_.at("tensors").find(name) != nullptr;
}

std::string Checkpoint::weight_format() const {
  return manifest_.at("weight_format").as_string();
}

std::vector<ManifestValue> Checkpoint::evaluate(const Json& expression) const {
  const std::string& op = expression.at("op").as_string();
  if (op == "load") {
    CheckpointTensor tensor = loaded(expression);
    if (gguf_blocks(tensor.dtype) != nullptr) {
      return {ManifestValue(std::make_shared<const GgufMatrix>(std::move(tensor)))};
    }
    if (type_bytes(tensor.dtype) == 0) throw invalid_argument("weights of type " + tensor.dtype + " are not supported");
    return {ManifestValue(std::move(tensor))};
  }
  if (op == "constant") return {ManifestValue(constant(expression))};
  std::vector<ManifestValue> all;
  for (const Json& argument : expression.at("args").as_array()) {
    for (ManifestValue& part : evaluate(argument)) all.push_back(std::move(part));
  }
  if (op == "concat") return all;
  if (op == "mxfp4") {
    if (all.size() != 2) throw invalid_argument("mxfp4 needs codes and scales");
    return {ManifestValue(decode_mxfp4(all[0].numbers(), all[1].numbers()))};
  }
  if (op == "add_product" && all.size() != 3) throw invalid_argument("add_product needs three matrices");
  if (op == "add_product") return {ManifestValue(std::make_shared<const AddedProduct>(all))};
  const bool is_quantized = op == "quantized" || op == "row_codes" || op == "scaled" || op == "table" || op == "affine";
  if (!is_quantized) return {rearranged(expression, all)};
  std::vector<CheckpointTensor> tensors;
  for (const ManifestValue& part : all) tensors.push_back(part.numbers());
  if (op == "scaled") return {ManifestValue(std::make_shared<const W8A8Matrix>(expression, tensors))};
  if (op == "table") return {ManifestValue(std::make_shared<const TableMatrix>(expression, tensors))};
  if (op == "affine") {
    return {ManifestValue(std::make_shared<const GgufMatrix>(affine_blocks(expression, tensors)))};
  }
  if (op == "row_codes") return {ManifestValue(std::make_shared<const RowQuantizedMatrix>(expression, tensors))};
  return {ManifestValue(std::make_shared<const AwqGptqMatrix>(expression, tensors))};
}

int Checkpoint::group_in(const Json& expression) const {
  const std::string& op = expression.at("op").as_string();
  if (op == "load") {
    return gguf_blocks(loaded(expression).dtype) != nullptr ? GgufMatrix::kInputGroup : 1;
  }
  if (op == "affine") return GgufMatrix::kInputGroup;
  if (op == "quantized" || op == "row_codes") {
    const auto stored = static_cast<int>(expression.at("group").as_int());
    return stored > 0 && stored % 8 == 0 ? GroupedMatrix::kernel_group(stored) : 1;  // others are refused when read
  }
  if (op == "scaled") {
    const std::vector<ManifestValue> quantized = evaluate(expression.at("args").at(0));
    if (quantized.empty()) throw invalid_argument("a scaled matrix needs codes and scales");
    return W8A8Matrix::kernel_group(expression, quantized[0].numbers());
  }
  int group = 1;
  for (const Json& argument : expression.at("args").as_array()) group = common_group(group, group_in(argument));
  return group;
}

int Checkpoint::input_group() const {
  int group = 1;
  for (const auto& [name, expression] : manifest_.at("tensors").as_object()) {
    group = common_group(group, group_in(expression));
  }
  return group;
}

std::vector<ManifestValue> Checkpoint::checked_parts(const std::string& name, const std::vector<Slice>& shape) const {
  std::vector<int64_t> found;
  std::vector<ManifestValue> all = evaluate(manifest_.at("tensors").at(name));
  for (const ManifestValue& part : all) {
    std::vector<int64_t> sizes = part.shape();
    if (sizes.empty()) throw invalid_argument("a single number is no tensor");
    if (!found.empty()) {
      if (!std::equal(sizes.begin() + 1, sizes.end(), found.begin() + 1, found.end())) {
        throw invalid_argument("parts of the shapes " + shape_text(found) + " and " + shape_text(sizes) +
                               " cannot be joined");
      }
      sizes[0] += found[0];
    }
    found = std::move(sizes);
  }
  std::vector<int64_t> expected;
  for (const Slice& slice : shape) expected.push_back(slice.whole());
  if (found != expected) {
    throw invalid_argument("expected shape " + shape_text(expected) + ", got " + shape_text(found));
  }
  if (!shape[0].is_whole()) all = kept_rows(all, shape[0]);
  if (shape.size() < 2 || shape[1].is_whole()) return all;
  for (ManifestValue& part : all) part = part.inputs(shape[1]);
  return all;
}

std::vector<ManifestValue> Checkpoint::parts(const std::string& name, const std::vector<Slice>& shape) const {
  try {
    return checked_parts(name, shape);
  } catch (const Error& error) {
    throw invalid_argument("tensor " + name + ": " + error.what());
  }
}

StoredTable Checkpoint::stored(const std::string& name, int rows, int size) const {
  StoredTable table{size, {}, {}};
  std::map<std::string, int> descriptors;
  int64_t end = 0;
  for (const ManifestValue& part : parts(name, {rows, size})) {
    const auto* blocks = dynamic_cast<const GgufMatrix*>(part.quantized());
    CheckpointTensor tensor;
    if (blocks != nullptr) tensor = blocks->tensor();
    if (part.quantized() == nullptr) tensor = part.numbers();
    const auto file = std::ranges::find_if(files_, [&](const auto& opened) {
      const MappedFile& mapped = mapped_of(opened);
      return static_cast<size_t>(tensor.data - mapped.data()) < mapped.size();
    });
    if (tensor.owner || file == files_.end() || tensor.shape != part.shape()) {
      throw invalid_argument("tensor " + name + " must be whole tensors of numbers or of GGUF's blocks");
    }
    const MappedFile& mapped = mapped_of(*file);
    const auto [opened, is_new] = descriptors.emplace(mapped.path(), -1);
    if (is_new) {
      opened->second = table.files.emplace_back(::open(mapped.path().c_str(), O_RDONLY | O_CLOEXEC)).get();
      if (opened->second < 0) throw Error(ErrorCode::kNotFound, "cannot open " + mapped.path());
      ::posix_fadvise(opened->second, 0, 0, POSIX_FADV_RANDOM);
    }
    const int64_t count = tensor.shape.front();
    const size_t row_bytes = tensor.bytes / static_cast<size_t>(count);
    const auto decode = [type = tensor.dtype, size, row_bytes](const std::byte* row, float* to) {
      const CheckpointTensor one{type, {1, size}, row, row_bytes, nullptr};
      if (gguf_blocks(type) == nullptr) return copy_values(one, to);
      GgufMatrix(one).dequantize(0, to);
    };
    table.parts.push_back({opened->second, tensor.data - mapped.data(), end += count, row_bytes, decode});
  }
  return table;
}

template <class T>
void Checkpoint::read(const std::string& name, const std::vector<Slice>& shape, T* destination,
                      const Loop& loop) const {
  try {
    for (const ManifestValue& part : checked_parts(name, shape)) {
      // Codes are decoded some rows at a time, which takes less memory.
      const auto rows = static_cast<int>(part.shape()[0]);
      const auto width = static_cast<size_t>(element_count(part.shape()) / std::max(rows, 1));
      loop((rows + kDequantizedRows - 1) / kDequantizedRows, [&](int block) {
        const int first = block * kDequantizedRows;
        copy_values(part.rows({first, std::min(first + kDequantizedRows, rows)}).numbers(),
                    destination + static_cast<size_t>(first) * width);
      });
      destination += static_cast<size_t>(rows) * width;
    }
  } catch (const Error& error) {
    throw invalid_argument("tensor " + name + ": " + error.what());
  }
}

template void Checkpoint::read<float>(const std::string&, const std::vector<Slice>&, float*, const Loop&) const;
template void Checkpoint::read<bf16>(const std::string&, const std::vector<Slice>&, bf16*, const Loop&) const;
template void Checkpoint::read<half>(const std::string&, const std::vector<Slice>&, half*, const Loop&) const;

}  // namespace turbomind
