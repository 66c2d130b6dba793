// A Triton request of any tensors and parameters: refused, or read. Input: records, with a byte 0x1E between them: a
// letter for the kind, a name, '=', the bytes of its value.
#include "triton/request_reader.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "engine/fields/generation_fields.h"
#include "fuzz/fuzz.h"

// Contents of Triton's handles.
struct TRITONBACKEND_Input {
  std::string name;
  TRITONSERVER_DataType type;
  std::string bytes;
};

struct TRITONBACKEND_Request {
  struct Parameter {
    std::string name;
    TRITONSERVER_ParameterType type;
    std::string text;
    int64_t whole;
    double real;
    bool flag;
  };
  std::vector<std::unique_ptr<TRITONBACKEND_Input>> inputs;
  std::vector<std::unique_ptr<Parameter>> parameters;
  uint64_t timeout = 0;
};

extern "C" {

void TRITONSERVER_ErrorDelete(TRITONSERVER_Error*) {}
const char* TRITONSERVER_ErrorMessage(TRITONSERVER_Error*) {
  return "";
}

TRITONSERVER_Error* TRITONBACKEND_RequestId(TRITONBACKEND_Request*, const char** id) {
  *id = "";
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_InferenceRequestTimeoutMicroseconds(TRITONBACKEND_Request* request,
                                                                      uint64_t* timeout) {
  *timeout = request->timeout;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestInputCount(TRITONBACKEND_Request* request, uint32_t* count) {
  *count = static_cast<uint32_t>(request->inputs.size());
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestInputByIndex(TRITONBACKEND_Request* request, const uint32_t index,
                                                      TRITONBACKEND_Input** input) {
  *input = request->inputs[index].get();
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_InputProperties(TRITONBACKEND_Input* input, const char** name,
                                                  TRITONSERVER_DataType* datatype, const int64_t**, uint32_t*,
                                                  uint64_t* byte_size, uint32_t* buffer_count) {
  *name = input->name.c_str();
  *datatype = input->type;
  *byte_size = input->bytes.size();
  *buffer_count = 1;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_InputBuffer(TRITONBACKEND_Input* input, const uint32_t, const void** buffer,
                                              uint64_t* buffer_byte_size, TRITONSERVER_MemoryType* memory_type,
                                              int64_t*) {
  *buffer = input->bytes.data();
  *buffer_byte_size = input->bytes.size();
  *memory_type = TRITONSERVER_MEMORY_CPU;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestParameterCount(TRITONBACKEND_Request* request, uint32_t* count) {
  *count = static_cast<uint32_t>(request->parameters.size());
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestParameter(TRITONBACKEND_Request* request, const uint32_t index,
                                                   const char** key, TRITONSERVER_ParameterType* type,
                                                   const void** value) {
  const TRITONBACKEND_Request::Parameter& parameter = *request->parameters[index];
  *key = parameter.name.c_str();
  *type = parameter.type;
  *value = parameter.type == TRITONSERVER_PARAMETER_STRING ? static_cast<const void*>(parameter.text.c_str())
           : parameter.type == TRITONSERVER_PARAMETER_INT  ? static_cast<const void*>(&parameter.whole)
           : parameter.type == TRITONSERVER_PARAMETER_BOOL ? static_cast<const void*>(&parameter.flag)
                                                           : static_cast<const void*>(&parameter.real);
  return nullptr;
}

}  // extern "C"

namespace turbomind {

namespace {

void add_record(TRITONBACKEND_Request& request, std::string_view record) {
  const size_t equals = record.find('=');
  if (record.empty() || equals == std::string_view::npos) return;
  const std::string name(record.substr(1, equals - 1));
  const std::string value(record.substr(equals + 1));
  const auto tensor = [&](TRITONSERVER_DataType type) {
    request.inputs.push_back(std::make_unique<TRITONBACKEND_Input>(TRITONBACKEND_Input{name, type, value}));
  };
  const auto parameter = [&](TRITONSERVER_ParameterType type) {
    request.parameters.push_back(std::make_unique<TRITONBACKEND_Request::Parameter>(
        TRITONBACKEND_Request::Parameter{name, type, value, std::strtoll(value.c_str(), nullptr, 10),
                                         std::strtod(value.c_str(), nullptr), value == "1"}));
  };
  switch (record[0]) {
    case 'i':
      return tensor(TRITONSERVER_TYPE_INT32);
    case 'u':
      return tensor(TRITONSERVER_TYPE_UINT32);
    case 'U':
      return tensor(TRITONSERVER_TYPE_UINT64);
    case 'f':
      return tensor(TRITONSERVER_TYPE_FP32);
    case 'b':
      return tensor(TRITONSERVER_TYPE_BOOL);
    case 'c':
      return tensor(TRITONSERVER_TYPE_UINT8);
    case 's':
      return tensor(TRITONSERVER_TYPE_BYTES);
    case 't':
      return parameter(TRITONSERVER_PARAMETER_STRING);
    case 'n':
      return parameter(TRITONSERVER_PARAMETER_INT);
    case 'd':
      return parameter(TRITONSERVER_PARAMETER_DOUBLE);
    case 'B':
      return parameter(TRITONSERVER_PARAMETER_BOOL);
    case 'T':
      request.timeout = std::strtoull(value.c_str(), nullptr, 10);
      return;
    default:
      return;
  }
}

}  // namespace

FUZZ_TARGET(request_reader) {
  constexpr char kSeparator = 0x1E;
  TRITONBACKEND_Request request;
  for (size_t at = 0; at < input.size();) {
    const std::string_view record = input.substr(at, std::min(input.find(kSeparator, at), input.size()) - at);
    add_record(request, record);
    at += record.size() + 1;
  }
  fuzz::is_accepted([&] {
    const RequestReader reader(&request);
    reader.is_legacy();
    fuzz::is_accepted([&] { reader.stop_request_id(); });
    fuzz::is_accepted([&] { reader.adapter_control(); });
    fuzz::is_accepted([&] { reader.sleep_control(); });
    fuzz::is_accepted([&] { reader.keep_alive(); });
    fuzz::is_accepted([&] { reader.input_ids(); });
    fuzz::is_accepted([&] {
      for (const EmbeddingRange& range : reader.embeddings(2)) {
        PROMISE(range.count > 0 && range.rows->count() == static_cast<size_t>(range.count));
      }
    });
    fuzz::is_accepted([&] { reader.session(); });
    fuzz::is_accepted([&] { reader.priority(); });
    fuzz::is_accepted([&] {
      const auto now = Clock::now();
      const auto deadline = reader.deadline();
      PROMISE(!deadline || *deadline > now);
    });
    const GenerationParams params = reader.params();
    for (const std::vector<int32_t>& word : params.bad_tokens) PROMISE(!word.empty());
  });
}

}  // namespace turbomind
