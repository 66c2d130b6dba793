// Response stream of a request: its response factory, requested outputs and statistics.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/request.h"
#include "triton/handles.h"

namespace turbomind {

class ResponseStream {
 public:
  // `is_legacy`: the client is of LMDeploy up to 0.5.1; its errors are numbers.
  ResponseStream(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request, bool is_legacy);
  // Reports statistics and returns the request to Triton.
  ~ResponseStream();
  ResponseStream(const ResponseStream&) = delete;
  ResponseStream& operator=(const ResponseStream&) = delete;

  // Sends one response; the final one carries Triton's final flag. A client that is gone is no error.
  void send(const Output& output) noexcept;
  // Sends a text as the only response.
  void reply(std::string text) noexcept;
  // Ends the stream without a response.
  void send_final() noexcept;
  // Ends the stream with an error.
  void send_error(ErrorCode code, const std::string& message) noexcept;

  // Whether an output needs the request's tokens.
  bool returns_prompt() const { return returns_sequence_; }
  // The client closed its stream. Not seen through an ensemble.
  bool is_cancelled() const;

 private:
  void send_response(const Output& output, uint32_t flags);

  TRITONBACKEND_ModelInstance* instance_;
  TRITONBACKEND_Request* request_;
  FactoryHandle factory_;
  bool is_legacy_;
  bool names_errors_;                   // the client asked for the names of error codes
  std::vector<std::string> requested_;  // names of the outputs the client asked for
  bool returns_sequence_ = false;       // output_ids or sequence_length is among them
  std::vector<int32_t> sequence_;       // then: all tokens so far
  uint64_t start_ns_;
  uint64_t first_response_ns_ = 0;
  bool is_success_ = false;
  bool has_failed_ = false;
};

}  // namespace turbomind
