// One loaded model: the engine, its open streams and its metrics.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

#include "engine/load_engine.h"
#include "triton/exit_watch.h"
#include "triton/handles.h"
#include "triton/metrics.h"
#include "triton/request_reader.h"
#include "triton/response_stream.h"

namespace turbomind {

// Names of requests that were to be cancelled before they arrived: a client that leaves while its request is still in
// the tokenizer sends its STOP ahead of it.
class EarlyStops {
 public:
  void add(const std::string& name);
  // Whether `name` is here; forgets it.
  bool take(const std::string& name);

 private:
  void forget_old();

  using Clock = std::chrono::steady_clock;
  std::deque<std::pair<Clock::time_point, std::string>> names_;  // oldest first
};

class ModelState {
 public:
  // Loads the engine that the model's configuration names. Throws Error with what the user must do.
  explicit ModelState(TRITONBACKEND_Model* model);
  // Ends open requests as cancelled, then unloads.
  ~ModelState();

  // Takes over the request; whatever goes wrong is answered to its client.
  void execute(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request) noexcept;

 private:
  struct Open {
    std::shared_ptr<ResponseStream> stream;
    std::string name;  // Triton's request id; may be empty
  };

  void start(const RequestReader& reader, const std::shared_ptr<ResponseStream>& stream);
  void refuse(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request,
              std::shared_ptr<ResponseStream>& stream, const Error& error) noexcept;
  void adapt_to_older_client(Request& request) const;
  std::string limits() const;  // JSON
  void control_cache(CacheControl control, const std::shared_ptr<ResponseStream>& stream);
  std::string control_adapters(const RequestReader::AdapterControl& control);
  void stop(const std::string& name);
  void close(RequestId id);
  void watch();
  void end_server(const std::string& reason);

  ExitWatch exit_watch_;                     // the watcher's
  std::atomic<bool> ends_unloaded_ = false;  // what is cancelled now had no more time to end
  std::optional<EngineMetrics> metrics_;     // used by the watcher, and by the destructor after it

  std::mutex mu_;
  std::condition_variable changed_;
  std::unordered_map<RequestId, Open> open_;  // guarded by mu_
  RequestId next_id_ = 1;                     // guarded by mu_
  EarlyStops early_stops_;                    // guarded by mu_
  bool is_stopping_ = false;                  // guarded by mu_

  std::unique_ptr<Engine> engine_;
  std::thread watcher_;  // notices clients that left, a server that stops and a failed device, and publishes metrics
};

}  // namespace turbomind
