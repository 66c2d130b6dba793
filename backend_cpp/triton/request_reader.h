// Reads a Triton request's tensors (model_repository/turbomind/config.pbtxt) into the engine's request.
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
  bool is_stop() const;
  // The id of the request to cancel; with is_stop().
  std::string stop_request_id() const;

  std::vector<int32_t> input_ids() const;
  GenerationParams params() const;

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

  TRITONBACKEND_Request* request_;
  std::map<std::string, Tensor, std::less<>> tensors_;
};

}  // namespace turbomind
