#include "triton/response_stream.h"

#include <chrono>
#include <cstring>

namespace turbomind {

namespace {

uint64_t now_ns() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

void* add_output(TRITONBACKEND_Response* response, const std::string& name, TRITONSERVER_DataType type, int64_t count,
                 uint64_t bytes) {
  const int64_t shape[2] = {1, count};
  TRITONBACKEND_Output* output = nullptr;
  check(TRITONBACKEND_ResponseOutput(response, &output, name.c_str(), type, shape, 2));
  void* buffer = nullptr;
  TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
  int64_t memory_id = 0;
  check(TRITONBACKEND_OutputBuffer(output, &buffer, bytes, &memory, &memory_id));
  if (memory == TRITONSERVER_MEMORY_GPU) throw internal_error("Triton offered GPU memory for output " + name);
  return buffer;
}

void add_string(TRITONBACKEND_Response* response, const std::string& name, const std::string& text) {
  const auto length = static_cast<uint32_t>(text.size());
  auto* buffer = static_cast<char*>(add_output(response, name, TRITONSERVER_TYPE_BYTES, 1, sizeof(length) + length));
  std::memcpy(buffer, &length, sizeof(length));
  std::memcpy(buffer + sizeof(length), text.data(), length);
}

void add_ints(TRITONBACKEND_Response* response, const std::string& name, const std::vector<int32_t>& values) {
  const size_t bytes = values.size() * sizeof(int32_t);
  void* buffer = add_output(response, name, TRITONSERVER_TYPE_INT32, static_cast<int64_t>(values.size()), bytes);
  if (bytes > 0) std::memcpy(buffer, values.data(), bytes);
}

void add_named_output(TRITONBACKEND_Response* response, const std::string& name, const Output& output) {
  if (name == "text_output") {
    add_string(response, name, output.text);
  } else if (name == "token_ids") {
    add_ints(response, name, output.token_ids);
  } else if (name == "finish_reason") {
    add_string(response, name, finish_reason_name(output.finish));
  } else if (name == "input_token_len") {
    add_ints(response, name, {output.input_token_len});
  } else if (name == "generate_token_len") {
    add_ints(response, name, {output.generate_token_len});
  } else if (name == "index") {
    add_ints(response, name, {0});
  }
}

}  // namespace

ResponseStream::ResponseStream(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request)
    : instance_(instance), request_(request), start_ns_(now_ns()) {
  TRITONBACKEND_ResponseFactory* factory = nullptr;
  check(TRITONBACKEND_ResponseFactoryNew(&factory, request));
  factory_.reset(factory);
  uint32_t count = 0;
  check(TRITONBACKEND_RequestOutputCount(request, &count));
  for (uint32_t i = 0; i < count; ++i) {
    const char* name = nullptr;
    check(TRITONBACKEND_RequestOutputName(request, i, &name));
    wanted_.emplace_back(name);
  }
}

ResponseStream::~ResponseStream() {
  const uint64_t end_ns = now_ns();
  const uint64_t compute_ns = first_response_ns_ != 0 ? first_response_ns_ : end_ns;
  ignore(TRITONBACKEND_ModelInstanceReportStatistics(instance_, request_, is_success_, start_ns_, start_ns_, compute_ns, end_ns));
  ignore(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance_, 1, start_ns_, start_ns_, compute_ns, end_ns));
  factory_.reset();
  ignore(TRITONBACKEND_RequestRelease(request_, TRITONSERVER_REQUEST_RELEASE_ALL));
}

void ResponseStream::send(const Output& output) noexcept {
  const bool is_last = output.finish != FinishReason::kNone;
  if (first_response_ns_ == 0) first_response_ns_ = now_ns();
  if (output.finish == FinishReason::kError) {
    send_error(ErrorCode::kInternal, output.error);
    return;
  }
  is_success_ = is_last;
  ignore(guarded([&] { send_response(output, is_last ? TRITONSERVER_RESPONSE_COMPLETE_FINAL : 0); }));
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
  TRITONSERVER_Error* error = TRITONSERVER_ErrorNew(triton_code(code), message.c_str());
  ignore(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error));
  TRITONSERVER_ErrorDelete(error);
}

void ResponseStream::send_response(const Output& output, uint32_t flags) {
  TRITONBACKEND_Response* response = nullptr;
  check(TRITONBACKEND_ResponseNewFromFactory(&response, factory_.get()));
  try {
    for (const std::string& name : wanted_) add_named_output(response, name, output);
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
