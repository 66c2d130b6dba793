// Notices that the server was told to stop.
//
// Triton then waits for open requests, up to its --exit-timeout-secs, and unloads the models. Past that time it exits
// while they still run, and may crash doing so. So the backend itself must end its requests in time.
#pragma once

#include <chrono>
#include <optional>

#include "triton/core/tritonbackend.h"

namespace turbomind {

class ExitWatch {
 public:
  // Open requests may go on for `drain` after the server was told to stop.
  ExitWatch(TRITONBACKEND_Model* model, std::chrono::duration<double> drain);

  // Whether open requests must end now.
  bool is_time_up();

 private:
  using Clock = std::chrono::steady_clock;
  TRITONSERVER_Server* server_ = nullptr;
  std::chrono::duration<double> drain_;
  std::optional<Clock::time_point> told_;
};

}  // namespace turbomind
