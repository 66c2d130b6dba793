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
  if (all.size() != 1)
    throw invalid_argument(std::string(name) + " must hold one value, got " + std::to_string(all.size()));
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
    if (position + length > bytes.size())
      throw invalid_argument(std::string(name) + " is not a well-formed BYTES tensor");
    result.emplace_back(bytes, position, length);
    position += length;
  }
  return result;
}

bool RequestReader::flag(const char* name) const {
  return scalar<int32_t>(name, TRITONSERVER_TYPE_INT32).value_or(0) != 0;
}

std::optional<std::string> RequestReader::stop_request_id() const {
  if (!flag("STOP") || is_legacy()) return std::nullopt;
  const std::vector<std::string> ids = strings("stop_request_id");
  if (ids.size() != 1 || ids[0].empty()) {
    if (has("session_id") || has("CORRID")) return std::nullopt;
    throw invalid_argument("STOP needs stop_request_id, session_id or CORRID: what to cancel");
  }
  return ids[0];
}

std::vector<int32_t> RequestReader::input_ids() const {
  const std::vector<uint32_t> wide = values<uint32_t>("input_ids", TRITONSERVER_TYPE_UINT32);
  std::vector<int32_t> ids(wide.size());
  // Ids beyond int32 become negative and are refused with the other ids outside the vocabulary.
  std::transform(wide.begin(), wide.end(), ids.begin(), [](uint32_t id) { return static_cast<int32_t>(id); });
  if (const auto length = scalar<uint32_t>("input_lengths", TRITONSERVER_TYPE_UINT32)) {
    if (*length > ids.size()) {
      throw invalid_argument("input_lengths must be at most the length of input_ids, " + std::to_string(ids.size()) +
                             ", got " + std::to_string(*length));
    }
    ids.resize(*length);
  }
  return ids;
}

GenerationParams RequestReader::params() const {
  GenerationParams params;
  params.stream = false;
  read_limits(params);
  read_sampling(params);
  if (is_legacy()) read_legacy(params);
  return params;
}

void RequestReader::read_limits(GenerationParams& params) const {
  read_bool(params.stream, "stream");
  read(params.max_new_tokens, "max_new_tokens", TRITONSERVER_TYPE_INT32);
  read(params.min_new_tokens, "min_new_tokens", TRITONSERVER_TYPE_INT32);
  read_bool(params.ignore_eos, "ignore_eos");
  read_bool(params.skip_special_tokens, "skip_special_tokens");
  params.stop_words = strings("stop_words");
  params.stop_token_ids = values<int32_t>("stop_token_ids", TRITONSERVER_TYPE_INT32);
  params.bad_words = strings("bad_words");
  for (const int32_t token : values<int32_t>("bad_token_ids", TRITONSERVER_TYPE_INT32))
    params.bad_tokens.push_back({token});
  read(params.n, "n", TRITONSERVER_TYPE_INT32);
  if (const auto logprobs = scalar<int32_t>("logprobs", TRITONSERVER_TYPE_INT32)) params.logprobs = *logprobs;
  params.prompt_logprobs = scalar<int32_t>("prompt_logprobs", TRITONSERVER_TYPE_INT32);
  if (const std::vector<std::string> format = strings("response_format"); !format.empty())
    params.response_format = format[0];
}

void RequestReader::read_sampling(GenerationParams& params) const {
  params.do_sample = has("temperature") || has("top_p") || has("top_k") || has("min_p");
  read_bool(params.do_sample, "do_sample");
  read(params.temperature, "temperature", TRITONSERVER_TYPE_FP32);
  read(params.top_p, "top_p", TRITONSERVER_TYPE_FP32);
  read(params.top_k, "top_k", TRITONSERVER_TYPE_INT32);
  read(params.min_p, "min_p", TRITONSERVER_TYPE_FP32);
  read(params.repetition_penalty, "repetition_penalty", TRITONSERVER_TYPE_FP32);
  read(params.presence_penalty, "presence_penalty", TRITONSERVER_TYPE_FP32);
  read(params.frequency_penalty, "frequency_penalty", TRITONSERVER_TYPE_FP32);
  params.random_seed = scalar<uint64_t>("random_seed", TRITONSERVER_TYPE_UINT64);
  const std::vector<int32_t> ids = values<int32_t>("logit_bias_ids", TRITONSERVER_TYPE_INT32);
  const std::vector<float> biases = values<float>("logit_bias_values", TRITONSERVER_TYPE_FP32);
  if (ids.size() != biases.size())
    throw invalid_argument("logit_bias_ids and logit_bias_values must be of the same length");
  for (size_t i = 0; i < ids.size(); ++i) params.logit_bias.emplace_back(ids[i], biases[i]);
}

// The older clients' names and defaults. They send single tokens as stop words, and the end-of-sequence token as a bad
// word to keep an answer going.
void RequestReader::read_legacy(GenerationParams& params) const {
  const std::vector<uint32_t> lengths = values<uint32_t>("request_output_len", TRITONSERVER_TYPE_UINT32);
  if (lengths.size() != 1) throw invalid_argument("request_output_len must hold one value");
  params.max_new_tokens = static_cast<int>(std::min<uint32_t>(lengths[0], 1u << 30));
  params.stream = true;
  params.top_k = static_cast<int>(scalar<uint32_t>("runtime_top_k", TRITONSERVER_TYPE_UINT32).value_or(0));
  read(params.top_p, "runtime_top_p", TRITONSERVER_TYPE_FP32);
  params.do_sample = params.top_k != 1;
  for (const std::vector<int32_t>& word : legacy_words("stop_words_list")) params.stop_token_ids.push_back(word.back());
  params.bad_tokens = legacy_words("bad_words_list");
}

// [2, M]: token ids of all words, then the end of each word; entries of -1 are padding.
std::vector<std::vector<int32_t>> RequestReader::legacy_words(const char* name) const {
  const std::vector<int32_t> flat = values<int32_t>(name, TRITONSERVER_TYPE_INT32);
  if (flat.size() % 2 != 0) throw invalid_argument(std::string(name) + " must have two rows");
  const auto count = static_cast<int32_t>(flat.size() / 2);
  std::vector<std::vector<int32_t>> words;
  int32_t begin = 0;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t end = flat[static_cast<size_t>(count + i)];
    if (end < 0) break;
    if (end <= begin || end > count) throw invalid_argument(std::string(name) + " has offsets out of order");
    words.emplace_back(flat.begin() + begin, flat.begin() + end);
    begin = end;
  }
  return words;
}

std::optional<SessionParams> RequestReader::session() const {
  SessionParams session;
  if (has("CORRID")) {
    session.id = *scalar<uint64_t>("CORRID", TRITONSERVER_TYPE_UINT64);
    session.start = scalar<int32_t>("START", TRITONSERVER_TYPE_INT32).value_or(1) != 0;
    session.end = scalar<int32_t>("END", TRITONSERVER_TYPE_INT32).value_or(1) != 0;
  } else if (has("session_id")) {
    session.id = *scalar<uint64_t>("session_id", TRITONSERVER_TYPE_UINT64);
    read_bool(session.start, "sequence_start");
    read_bool(session.end, "sequence_end");
  } else {
    return std::nullopt;
  }
  session.stop = flag("STOP");
  read(session.step, "step", TRITONSERVER_TYPE_INT32);
  return session;
}

int RequestReader::priority() const {
  return scalar<int32_t>("priority", TRITONSERVER_TYPE_INT32).value_or(0);
}

std::optional<Clock::time_point> RequestReader::deadline() const {
  std::optional<std::chrono::microseconds> limit;
  if (const auto timeout = scalar<int32_t>("timeout_ms", TRITONSERVER_TYPE_INT32)) {
    if (*timeout < 1) throw invalid_argument("timeout_ms must be >= 1, got " + std::to_string(*timeout));
    limit = std::chrono::milliseconds(*timeout);
  }
  uint64_t microseconds = 0;
  check(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request_, &microseconds));
  if (microseconds > 0 && (!limit || std::chrono::microseconds(microseconds) < *limit))
    limit = std::chrono::microseconds(microseconds);
  if (!limit) return std::nullopt;
  return Clock::now() + *limit;
}

}  // namespace turbomind
