#include "triton/request_reader.h"

#include <algorithm>
#include <cstring>

namespace turbomind {

RequestReader::RequestReader(TRITONBACKEND_Request* request) : request_(request) {
  uint32_t count = 0;
  check(TRITONBACKEND_RequestInputCount(request, &count));
  for (uint32_t i = 0; i < count; ++i) {
    TRITONBACKEND_Input* input = nullptr;
    check(TRITONBACKEND_RequestInputByIndex(request, i, &input));
    const char* name = nullptr;
    Tensor tensor{};
    uint64_t bytes = 0;
    uint32_t buffers = 0;
    check(TRITONBACKEND_InputProperties(input, &name, &tensor.type, nullptr, nullptr, &bytes, &buffers));
    tensor.bytes.reserve(bytes);
    for (uint32_t b = 0; b < buffers; ++b) {
      const void* data = nullptr;
      uint64_t size = 0;
      TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
      int64_t memory_id = 0;
      check(TRITONBACKEND_InputBuffer(input, b, &data, &size, &memory, &memory_id));
      if (memory == TRITONSERVER_MEMORY_GPU) throw invalid_argument(std::string(name) + " must be in CPU memory");
      tensor.bytes.append(static_cast<const char*>(data), size);
    }
    tensors_.emplace(name, std::move(tensor));
  }
}

std::string RequestReader::id() const {
  const char* id = nullptr;
  check(TRITONBACKEND_RequestId(request_, &id));
  return id != nullptr ? id : "";
}

template <class T>
std::vector<T> RequestReader::values(const char* name, TRITONSERVER_DataType type) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) return {};
  const Tensor& tensor = it->second;
  if (tensor.type != type || tensor.bytes.size() % sizeof(T) != 0) {
    throw invalid_argument(std::string(name) + " has the wrong datatype or size; see turbomind/config.pbtxt");
  }
  std::vector<T> result(tensor.bytes.size() / sizeof(T));
  std::memcpy(result.data(), tensor.bytes.data(), tensor.bytes.size());
  return result;
}

template <class T>
std::optional<T> RequestReader::scalar(const char* name, TRITONSERVER_DataType type) const {
  if (!has(name)) return std::nullopt;
  const std::vector<T> all = values<T>(name, type);
  if (all.size() != 1) throw invalid_argument(std::string(name) + " must hold one value, got " + std::to_string(all.size()));
  return all[0];
}

// BYTES tensors: each element is a little-endian uint32 length and that many bytes.
std::vector<std::string> RequestReader::strings(const char* name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) return {};
  const std::string& bytes = it->second.bytes;
  std::vector<std::string> result;
  for (size_t position = 0; position < bytes.size();) {
    uint32_t length = 0;
    if (it->second.type != TRITONSERVER_TYPE_BYTES || position + sizeof(length) > bytes.size()) {
      throw invalid_argument(std::string(name) + " is not a well-formed BYTES tensor");
    }
    std::memcpy(&length, bytes.data() + position, sizeof(length));
    position += sizeof(length);
    if (position + length > bytes.size()) throw invalid_argument(std::string(name) + " is not a well-formed BYTES tensor");
    result.emplace_back(bytes, position, length);
    position += length;
  }
  return result;
}

bool RequestReader::is_stop() const { return scalar<int32_t>("STOP", TRITONSERVER_TYPE_INT32).value_or(0) != 0; }

std::string RequestReader::stop_request_id() const {
  const std::vector<std::string> ids = strings("stop_request_id");
  if (ids.size() != 1 || ids[0].empty()) throw invalid_argument("STOP needs stop_request_id, the id of the request to cancel");
  return ids[0];
}

std::vector<int32_t> RequestReader::input_ids() const {
  const std::vector<uint32_t> wide = values<uint32_t>("input_ids", TRITONSERVER_TYPE_UINT32);
  std::vector<int32_t> ids(wide.size());
  // Ids beyond int32 become negative and are refused with the other ids outside the vocabulary.
  std::transform(wide.begin(), wide.end(), ids.begin(), [](uint32_t id) { return static_cast<int32_t>(id); });
  if (const auto length = scalar<uint32_t>("input_lengths", TRITONSERVER_TYPE_UINT32)) {
    if (*length > ids.size()) {
      throw invalid_argument("input_lengths must be at most the length of input_ids, " + std::to_string(ids.size()) + ", got " +
                             std::to_string(*length));
    }
    ids.resize(*length);
  }
  return ids;
}

GenerationParams RequestReader::params() const {
  GenerationParams params;
  const auto read = [&](auto& field, const char* name, TRITONSERVER_DataType type) {
    using T = std::remove_reference_t<decltype(field)>;
    if (const auto value = scalar<T>(name, type)) field = *value;
  };
  const auto read_bool = [&](bool& field, const char* name) {
    if (const auto value = scalar<uint8_t>(name, TRITONSERVER_TYPE_BOOL)) field = *value != 0;
  };
  params.stream = false;
  read_bool(params.stream, "stream");
  read(params.max_new_tokens, "max_new_tokens", TRITONSERVER_TYPE_INT32);
  read(params.min_new_tokens, "min_new_tokens", TRITONSERVER_TYPE_INT32);
  params.do_sample = has("temperature") || has("top_p") || has("top_k");
  read_bool(params.do_sample, "do_sample");
  read(params.temperature, "temperature", TRITONSERVER_TYPE_FP32);
  read(params.top_p, "top_p", TRITONSERVER_TYPE_FP32);
  read(params.top_k, "top_k", TRITONSERVER_TYPE_INT32);
  read(params.repetition_penalty, "repetition_penalty", TRITONSERVER_TYPE_FP32);
  params.random_seed = scalar<uint64_t>("random_seed", TRITONSERVER_TYPE_UINT64);
  read_bool(params.ignore_eos, "ignore_eos");
  read_bool(params.skip_special_tokens, "skip_special_tokens");
  params.stop_words = strings("stop_words");
  params.stop_token_ids = values<int32_t>("stop_token_ids", TRITONSERVER_TYPE_INT32);
  return params;
}

}  // namespace turbomind
