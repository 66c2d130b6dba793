#include "weights/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <string_view>

#include "base/error.h"
#include "weights/awq_gptq.h"
#include "weights/mxfp4.h"
#include "weights/w8a8.h"

namespace turbomind {

namespace {

constexpr size_t kHeaderLimit = 100u << 20;

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

// What a slice keeps of parts that are joined along dimension 0.
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
      size_t elements = 1;
      for (const Json& size : entry.at("shape").as_array()) {
        tensor.shape.push_back(size.as_int());
        elements *= static_cast<size_t>(size.as_int());
      }
      const Json::Array& offsets = entry.at("data_offsets").as_array();
      const auto begin = static_cast<size_t>(offsets.at(0).as_int());
      const auto end = static_cast<size_t>(offsets.at(1).as_int());
      if (end < begin || end > payload_bytes)
        throw invalid_argument("tensor " + name + " lies beyond the end: the file is truncated");
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
    files_.emplace_back((std::filesystem::path(directory) / file.as_string()).string());
  }
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
    const auto file = static_cast<size_t>(expression.at("file").as_int());
    if (file >= files_.size()) throw invalid_argument("file index out of range");
    return {ManifestValue(files_[file].tensor(expression.at("name").as_string()))};
  }
  std::vector<ManifestValue> all;
  for (const Json& argument : expression.at("args").as_array()) {
    for (ManifestValue& part : evaluate(argument)) all.push_back(std::move(part));
  }
  if (op == "concat") return all;
  if (op == "mxfp4") return {ManifestValue(decode_mxfp4(all.at(0).numbers(), all.at(1).numbers()))};
  if (op != "quantized" && op != "scaled") return {rearranged(expression, all)};
  std::vector<CheckpointTensor> tensors;
  for (const ManifestValue& part : all) tensors.push_back(part.numbers());
  if (op == "scaled") return {ManifestValue(std::make_shared<const W8A8Matrix>(expression, tensors))};
  return {ManifestValue(std::make_shared<const AwqGptqMatrix>(expression, tensors))};
}

int Checkpoint::group_in(const Json& expression) const {
  const std::string& op = expression.at("op").as_string();
  if (op == "load") return 1;
  if (op == "quantized") {
    const auto stored = static_cast<int>(expression.at("group").as_int());
    return stored > 0 && stored % 8 == 0 ? AwqGptqMatrix::kernel_group(stored) : 1;  // others are refused when read
  }
  if (op == "scaled")
    return W8A8Matrix::kernel_group(expression, evaluate(expression.at("args").as_array().at(0)).at(0).numbers());
  int group = 1;
  for (const Json& argument : expression.at("args").as_array()) group = std::lcm(group, group_in(argument));
  return group;
}

int Checkpoint::input_group() const {
  int group = 1;
  for (const auto& [name, expression] : manifest_.at("tensors").as_object()) {
    group = std::lcm(group, group_in(expression));
  }
  return group;
}

std::vector<ManifestValue> Checkpoint::checked_parts(const std::string& name, const std::vector<Slice>& shape) const {
  std::vector<int64_t> found;
  std::vector<ManifestValue> all = evaluate(manifest_.at("tensors").at(name));
  for (const ManifestValue& part : all) {
    const std::vector<int64_t> sizes = part.shape();
    if (found.empty()) {
      found = sizes;
    } else {
      if (sizes.size() != found.size()) throw invalid_argument("parts differ in rank");
      found[0] += sizes[0];
    }
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

template <class T>
void Checkpoint::read(const std::string& name, const std::vector<Slice>& shape, T* destination) const {
  try {
    for (const ManifestValue& part : checked_parts(name, shape)) {
      const CheckpointTensor numbers = part.numbers();
      copy_values(numbers, destination);
      destination += numbers.bytes / type_bytes(numbers.dtype);
    }
  } catch (const Error& error) {
    throw invalid_argument("tensor " + name + ": " + error.what());
  }
}

template void Checkpoint::read<float>(const std::string&, const std::vector<Slice>&, float*) const;
template void Checkpoint::read<bf16>(const std::string&, const std::vector<Slice>&, bf16*) const;
template void Checkpoint::read<half>(const std::string&, const std::vector<Slice>&, half*) const;

}  // namespace turbomind
