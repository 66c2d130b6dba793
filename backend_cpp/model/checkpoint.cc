#include "model/checkpoint.h"

#include <cstring>
#include <filesystem>
#include <string_view>

#include "base/error.h"

namespace turbomind {

namespace {

constexpr size_t kHeaderLimit = 100u << 20;

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

size_t element_size(const std::string& dtype) {
  if (dtype == "F32") return 4;
  if (dtype == "BF16" || dtype == "F16") return 2;
  throw invalid_argument("weights of type " + dtype + " are not supported (F32, BF16 and F16 are)");
}

template <class T>
void convert(const StoredTensor& source, T* destination) {
  const size_t count = source.bytes / element_size(source.dtype);
  if (source.dtype == "F32") {
    for (size_t i = 0; i < count; ++i) {
      float value;
      std::memcpy(&value, source.data + 4 * i, sizeof(value));
      destination[i] = from_float<T>(value);
    }
  } else if (source.dtype == "BF16") {
    if constexpr (std::is_same_v<T, bf16>) {
      std::memcpy(destination, source.data, source.bytes);
    } else {
      for (size_t i = 0; i < count; ++i) {
        bf16 value;
        std::memcpy(&value, source.data + 2 * i, sizeof(value));
        destination[i] = to_float(value);
      }
    }
  } else {
    for (size_t i = 0; i < count; ++i) {
      half value;
      std::memcpy(&value, source.data + 2 * i, sizeof(value));
      destination[i] = from_float<T>(to_float(value));
    }
  }
}

template <class T>
std::vector<T> integers(const Json& list) {
  std::vector<T> values;
  for (const Json& value : list.as_array()) values.push_back(static_cast<T>(value.as_int()));
  return values;
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
      StoredTensor tensor{entry.at("dtype").as_string(), {}, nullptr, 0, nullptr};
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
      if ((tensor.dtype == "F32" || tensor.dtype == "BF16" || tensor.dtype == "F16") &&
          tensor.bytes != elements * element_size(tensor.dtype)) {
        throw invalid_argument("tensor " + name + " has " + std::to_string(tensor.bytes) +
                               " bytes, which does not fit its shape");
      }
      tensors_.emplace(name, std::move(tensor));
    }
  } catch (const Error& error) {
    throw invalid_argument(path + ": " + error.what());
  }
}

const StoredTensor& SafetensorsFile::tensor(const std::string& name) const {
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

std::vector<StoredTensor> Checkpoint::parts(const Json& expression) const {
  const std::string& op = expression.at("op").as_string();
  if (op == "load") {
    const auto file = static_cast<size_t>(expression.at("file").as_int());
    if (file >= files_.size()) throw invalid_argument("file index out of range");
    return {files_[file].tensor(expression.at("name").as_string())};
  }
  std::vector<StoredTensor> all;
  for (const Json& argument : expression.at("args").as_array()) {
    for (StoredTensor& part : parts(argument)) all.push_back(std::move(part));
  }
  if (op == "concat") return all;
  if (op == "slice") {
    const auto dim = static_cast<size_t>(expression.at("dim").as_int());
    return {sliced(joined(all), dim, expression.at("begin").as_int(), expression.at("end").as_int())};
  }
  if (op == "permute") return {permuted(joined(all), integers<size_t>(expression.at("dims")))};
  if (op == "reshape") return {reshaped(joined(all), integers<int64_t>(expression.at("shape")))};
  throw invalid_argument("unknown operation " + op + "; convert the model again");
}

template <class T>
void Checkpoint::read(const std::string& name, const std::vector<int64_t>& shape, T* destination) const {
  try {
    std::vector<int64_t> found;
    const std::vector<StoredTensor> sources = parts(manifest_.at("tensors").at(name));
    for (const StoredTensor& source : sources) {
      if (found.empty()) {
        found = source.shape;
      } else {
        if (source.shape.size() != found.size()) throw invalid_argument("parts differ in rank");
        found[0] += source.shape[0];
      }
    }
    if (found != shape) throw invalid_argument("expected shape " + shape_text(shape) + ", got " + shape_text(found));
    for (const StoredTensor& source : sources) {
      convert(source, destination);
      destination += source.bytes / element_size(source.dtype);
    }
  } catch (const Error& error) {
    throw invalid_argument("tensor " + name + ": " + error.what());
  }
}

template void Checkpoint::read<float>(const std::string&, const std::vector<int64_t>&, float*) const;
template void Checkpoint::read<bf16>(const std::string&, const std::vector<int64_t>&, bf16*) const;

}  // namespace turbomind
