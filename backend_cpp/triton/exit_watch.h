// Watch for a server shutdown or a model unload.
//
// Triton then waits for open requests: a server that stops up to its --exit-timeout-secs, past which it exits while
// they still run and may crash doing so; a model that is unloaded forever. So the backend itself must end its requests
// in time.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "triton/core/tritonbackend.h"

namespace turbomind {

// How long open requests may continue. No `unload`: the model is never unloaded while the server runs.
struct Grace {
  std::chrono::duration<double> drain;
  std::optional<std::chrono::duration<double>> unload;
};

class ExitWatch {
 public:
  enum class End { kNotYet, kServerStops, kModelUnloads };

  ExitWatch(TRITONBACKEND_Model* model, const Grace& grace);

  // Why open requests must end now, if they must. To be asked once the model was ready.
  End time_up();

 private:
  using Clock = std::chrono::steady_clock;

  bool is_server_stopping() const;
  bool is_unloading() const;

  TRITONSERVER_Server* server_ = nullptr;
  std::string model_;
  int64_t version_ = 0;
  Grace grace_;
  std::optional<Clock::time_point> stop_reported_;
  std::optional<Clock::time_point> unload_reported_;
};

}  // namespace turbomind
