// Reads a Triton request's tensors (model_repository/turbomind/config.pbtxt) into the engine's request.
//
// Requests of LMDeploy's Triton clients up to 0.5.1 use other names for some of them; they are told by
// request_output_len.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "triton/handles.h"

namespace turbomind {

class RequestReader {
 public:
  // Copies every input. Throws Error naming the tensor that cannot be read.
  explicit RequestReader(TRITONBACKEND_Request* request);

  std::string id() const;
  // Of an LMDeploy client up to 0.5.1.
  bool is_legacy() const { return has("request_output_len"); }
  // The id of the request to cancel, if this asks for that.
  std::optional<std::string> stop_request_id() const;

  std::vector<int32_t> input_ids() const;
  GenerationParams params() const;
  std::optional<SessionParams> session() const;
  int priority() const;
  std::optional<Clock::time_point> deadline() const;

 private:
  struct Tensor {
    TRITONSERVER_DataType type;
    std::string bytes;
  };

  bool has(const char* name) const { return tensors_.count(name) > 0; }
  template <class T>
  std::vector<T> values(const char* name, TRITONSERVER_DataType type) const;
  template <class T>
  std::optional<T> scalar(const char* name, TRITONSERVER_DataType type) const;
  std::vector<std::string> strings(const char* name) const;
  std::vector<std::vector<int32_t>> legacy_words(const char* name) const;
  void read_limits(GenerationParams& params) const;
  void read_sampling(GenerationParams& params) const;
  void read_legacy(GenerationParams& params) const;
  bool flag(const char* name) const;

  template <class T>
  void read(T& field, const char* name, TRITONSERVER_DataType type) const {
    if (const auto value = scalar<T>(name, type)) field = *value;
  }
  void read_bool(bool& field, const char* name) const {
    if (const auto value = scalar<uint8_t>(name, TRITONSERVER_TYPE_BOOL)) field = *value != 0;
  }

  TRITONBACKEND_Request* request_;
  std::map<std::string, Tensor, std::less<>> tensors_;
};

}  // namespace turbomind
