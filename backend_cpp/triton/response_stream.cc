#include "triton/response_stream.h"

#include <chrono>
#include <cstring>

#include "engine/generation/text_stream.h"

namespace turbomind {

namespace {

constexpr const char* kOfPrompt = "prompt_";

uint64_t now_ns() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

// The number an LMDeploy client up to 0.5.1 knows an error by (codes of its server's RequestStatus).
int legacy_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUnknownSession:
      return 1;
    case ErrorCode::kSessionBusy:
      return 3;
    case ErrorCode::kSessionIdle:
      return 4;
    case ErrorCode::kTooLong:
      return 6;
    default:
      return 5;
  }
}

const char* code_name(ErrorCode code) {
  switch (triton_code(code)) {
    case TRITONSERVER_ERROR_INVALID_ARG:
      return "INVALID_ARGUMENT";
    case TRITONSERVER_ERROR_NOT_FOUND:
      return "NOT_FOUND";
    case TRITONSERVER_ERROR_UNAVAILABLE:
      return "UNAVAILABLE";
    default:
      return "INTERNAL";
  }
}

// Whether the request has the parameter error_codes (docs/internals/interfaces.md).
bool reports_error_codes(TRITONBACKEND_Request* request) {
  uint32_t count = 0;
  check(TRITONBACKEND_RequestParameterCount(request, &count));
  for (uint32_t i = 0; i < count; ++i) {
    const char* key = nullptr;
    TRITONSERVER_ParameterType type = TRITONSERVER_PARAMETER_BOOL;
    const void* value = nullptr;
    check(TRITONBACKEND_RequestParameter(request, i, &key, &type, &value));
    if (std::strcmp(key, "error_codes") != 0) continue;
    return type == TRITONSERVER_PARAMETER_BOOL && *static_cast<const bool*>(value);
  }
  return false;
}

// Adds an output of shape [1, ...dims] and returns its buffer.
void* add_output(TRITONBACKEND_Response* response, const std::string& name, TRITONSERVER_DataType type,
                 std::initializer_list<int64_t> dims, uint64_t bytes) {
  std::vector<int64_t> shape = {1};
  shape.insert(shape.end(), dims);
  TRITONBACKEND_Output* output = nullptr;
  check(TRITONBACKEND_ResponseOutput(response, &output, name.c_str(), type, shape.data(),
                                     static_cast<uint32_t>(shape.size())));
  void* buffer = nullptr;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
  int64_t memory_id = 0;
  check(TRITONBACKEND_OutputBuffer(output, &buffer, bytes, &memory, &memory_id));
  if (memory == TRITONSERVER_MEMORY_GPU) throw internal_error("Triton offered GPU memory for output " + name);
  return buffer;
}

void add_string(TRITONBACKEND_Response* response, const std::string& name, const std::string& text) {
  const auto length = static_cast<uint32_t>(text.size());
  auto* buffer = static_cast<char*>(add_output(response, name, TRITONSERVER_TYPE_BYTES, {1}, sizeof(length) + length));
  std::memcpy(buffer, &length, sizeof(length));
  std::memcpy(buffer + sizeof(length), text.data(), length);
}

template <class T>
void add_values(TRITONBACKEND_Response* response, const std::string& name, TRITONSERVER_DataType type,
                std::initializer_list<int64_t> dims, const std::vector<T>& values) {
  const size_t bytes = values.size() * sizeof(T);
  void* buffer = add_output(response, name, type, dims, bytes);
  if (bytes > 0) std::memcpy(buffer, values.data(), bytes);
}

void add_int(TRITONBACKEND_Response* response, const std::string& name, int32_t value) {
  add_values<int32_t>(response, name, TRITONSERVER_TYPE_INT32, {1}, {value});
}

// `what`: "token_logprobs", "top_token_ids" or "top_logprobs".
void add_logprobs(TRITONBACKEND_Response* response, const std::string& name, const std::string& what,
                  const std::vector<TokenLogprobs>& entries) {
  const auto rows = static_cast<int64_t>(entries.size());
  const auto columns = static_cast<int64_t>(rows > 0 ? entries[0].top.size() : 0);
  std::vector<float> values;
  std::vector<int32_t> ids;
  for (const TokenLogprobs& entry : entries) {
    if (what == "token_logprobs") values.push_back(entry.chosen);
    for (const auto& [id, value] : entry.top) {
      if (what == "top_token_ids") ids.push_back(id);
      if (what == "top_logprobs") values.push_back(value);
    }
  }
  if (what == "token_logprobs") {
    add_values(response, name, TRITONSERVER_TYPE_FP32, {rows}, values);
  } else if (what == "top_logprobs") {
    add_values(response, name, TRITONSERVER_TYPE_FP32, {rows, columns}, values);
  } else {
    add_values(response, name, TRITONSERVER_TYPE_INT32, {rows, columns}, ids);
  }
}

void add_named_output(TRITONBACKEND_Response* response, const std::string& name, const Output& output,
                      const std::vector<int32_t>& sequence) {
  const auto length = static_cast<int64_t>(sequence.size());
  if (name == "text_output") {
    add_string(response, name, output.text);
  } else if (name == "token_ids") {
    add_values(response, name, TRITONSERVER_TYPE_INT32, {static_cast<int64_t>(output.token_ids.size())},
               output.token_ids);
  } else if (name == "finish_reason") {
    add_string(response, name, finish_reason_name(output.finish));
  } else if (name == "stop_string") {
    add_string(response, name, output.stop_string);
  } else if (name == "input_token_len") {
    add_int(response, name, output.input_token_len);
  } else if (name == "generate_token_len") {
    add_int(response, name, output.generate_token_len);
  } else if (name == "history_token_len") {
    add_int(response, name, output.history_token_len);
  } else if (name == "cached_token_len") {
    add_int(response, name, output.cached_token_len);
  } else if (name == "index") {
    add_int(response, name, output.index);
  } else if (name == "embedding") {
    add_values(response, name, TRITONSERVER_TYPE_FP32, {static_cast<int64_t>(output.embedding.size())},
               output.embedding);
  } else if (name == "engine_seconds") {
    const EngineTimes& times = output.times;
    add_values<float>(response, name, TRITONSERVER_TYPE_FP32, {3}, {times.queue, times.prompt, times.answer});
  } else if (name == "load_seconds") {
    add_values<float>(response, name, TRITONSERVER_TYPE_FP32, {1}, {output.times.load});
  } else if (name == "cache_report") {
    std::vector<int32_t> numbers;
    if (const auto& report = output.cache_report) {
      numbers = {report->device, report->host,   report->disk, report->snapshot, static_cast<int32_t>(report->end),
                 report->token,  report->seconds};
    }
    add_values(response, name, TRITONSERVER_TYPE_INT32, {static_cast<int64_t>(numbers.size())}, numbers);
  } else if (name == "output_ids") {
    add_values(response, name, TRITONSERVER_TYPE_UINT32, {1, length}, sequence);
  } else if (name == "sequence_length") {
    add_values<int32_t>(response, name, TRITONSERVER_TYPE_UINT32, {1}, {static_cast<int32_t>(length)});
  } else if (name == "prompt_token_ids") {
    const std::vector<int32_t> none;
    const std::vector<int32_t>& ids = output.prompt_logprobs.empty() ? none : *output.prompt;
    add_values(response, name, TRITONSERVER_TYPE_INT32, {static_cast<int64_t>(ids.size())}, ids);
  } else if (name.rfind(kOfPrompt, 0) == 0) {
    add_logprobs(response, name, name.substr(std::strlen(kOfPrompt)), output.prompt_logprobs);
  } else {
    add_logprobs(response, name, name, output.logprobs);
  }
}

}  // namespace

ResponseStream::ResponseStream(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request, bool is_legacy)
    : instance_(instance),
      request_(request),
      is_legacy_(is_legacy),
      names_errors_(reports_error_codes(request)),
      start_ns_(now_ns()) {
  TRITONBACKEND_ResponseFactory* factory = nullptr;
  check(TRITONBACKEND_ResponseFactoryNew(&factory, request));
  factory_.reset(factory);
  uint32_t count = 0;
  check(TRITONBACKEND_RequestOutputCount(request, &count));
  for (uint32_t i = 0; i < count; ++i) {
    const char* name = nullptr;
    check(TRITONBACKEND_RequestOutputName(request, i, &name));
    requested_.emplace_back(name);
    returns_sequence_ =
        returns_sequence_ || requested_.back() == "output_ids" || requested_.back() == "sequence_length";
  }
}

ResponseStream::~ResponseStream() {
  const uint64_t end_ns = now_ns();
  const uint64_t compute_ns = first_response_ns_ != 0 ? first_response_ns_ : end_ns;
  ignore(TRITONBACKEND_ModelInstanceReportStatistics(instance_, request_, is_success_, start_ns_, start_ns_, compute_ns,
                                                     end_ns));
  ignore(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance_, 1, start_ns_, start_ns_, compute_ns, end_ns));
  factory_.reset();
  ignore(TRITONBACKEND_RequestRelease(request_, TRITONSERVER_REQUEST_RELEASE_ALL));
}

void ResponseStream::send(const Output& output) noexcept {
  if (first_response_ns_ == 0) first_response_ns_ = now_ns();
  if (output.finish == FinishReason::kError) {
    // The first failing response ends the stream; what else is open of the request fails with it.
    if (!has_failed_) send_error(output.error_code, output.error);
    has_failed_ = true;
    return;
  }
  if (returns_sequence_) {
    if (sequence_.empty() && output.prompt) sequence_ = *output.prompt;
    sequence_.insert(sequence_.end(), output.token_ids.begin(), output.token_ids.end());
    if (output.stop_token >= 0) sequence_.push_back(output.stop_token);
  }
  is_success_ = output.is_final;
  ignore(guarded([&] { send_response(output, output.is_final ? TRITONSERVER_RESPONSE_COMPLETE_FINAL : 0); }));
}

void ResponseStream::reply(std::string text) noexcept {
  Output output;
  output.text = std::move(text);
  output.finish = FinishReason::kStop;
  output.is_final = true;
  send(output);
}

void ResponseStream::send_final() noexcept {
  is_success_ = true;
  ignore(TRITONBACKEND_ResponseFactorySendFlags(factory_.get(), TRITONSERVER_RESPONSE_COMPLETE_FINAL));
}

void ResponseStream::send_error(ErrorCode code, const std::string& message) noexcept {
  TRITONBACKEND_Response* response = nullptr;
  TRITONSERVER_Error* failure = TRITONBACKEND_ResponseNewFromFactory(&response, factory_.get());
  if (failure != nullptr) {
    ignore(failure);
    return;
  }
  std::string text = valid_utf8(message);
  if (is_legacy_) {
    text = "TurboMind execute failure: " + std::to_string(legacy_code(code)) + " (" + text + ")";
  } else if (names_errors_) {
    text = std::string(code_name(code)) + ": " + text;
  }
  TRITONSERVER_Error* error =
      TRITONSERVER_ErrorNew(is_legacy_ ? TRITONSERVER_ERROR_INTERNAL : triton_code(code), text.c_str());
  ignore(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error));
  TRITONSERVER_ErrorDelete(error);
}

void ResponseStream::send_response(const Output& output, uint32_t flags) {
  TRITONBACKEND_Response* response = nullptr;
  check(TRITONBACKEND_ResponseNewFromFactory(&response, factory_.get()));
  try {
    for (const std::string& name : requested_) add_named_output(response, name, output, sequence_);
  } catch (const Error&) {
    ignore(TRITONBACKEND_ResponseDelete(response));
    throw;
  }
  check(TRITONBACKEND_ResponseSend(response, flags, nullptr));
}

bool ResponseStream::is_cancelled() const {
  bool cancelled = false;
  ignore(TRITONBACKEND_ResponseFactoryIsCancelled(factory_.get(), &cancelled));
  return cancelled;
}

}  // namespace turbomind
