// State of a served model: its engine, which may sleep, its open streams and its metrics.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "triton/engine_loader.h"
#include "triton/exit_watch.h"
#include "triton/handles.h"
#include "triton/metrics.h"
#include "triton/model_memory.h"
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
  void evict_old();

  using Clock = std::chrono::steady_clock;
  std::deque<std::pair<Clock::time_point, std::string>> names_;  // oldest first
};

class ModelState {
 public:
  // Finds the model that the configuration names, and loads its engine if the memory of all models has room for it.
  // Throws Error with what the user must do.
  explicit ModelState(TRITONBACKEND_Model* model);
  // Ends open requests as cancelled, then unloads.
  ~ModelState();

  // Takes over the request; whatever goes wrong is answered to its client.
  void execute(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request) noexcept;

 private:
  using Stream = std::shared_ptr<ResponseStream>;
  // Begins a request when the model is awake; `waited`: seconds that it took. May throw Error.
  using Begin = std::function<void(RequestId id, float waited)>;

  struct Open {
    Stream stream;
    std::string name;  // Triton's request id; may be empty
    int input_len = 0;
    std::optional<Clock::time_point> deadline = std::nullopt;
    std::optional<ModelMemory::Seconds> keep_alive = std::nullopt;
    Clock::time_point arrived = Clock::now();
    Begin begin = nullptr;  // while it waits for the model
    bool is_stopped = false;
  };
  // Somebody who waits for the model's sleep.
  struct Sleeper {
    Stream stream;
    SleepLevel level;
  };

  void start(const std::shared_ptr<const RequestReader>& reader, const Stream& stream);
  void reject(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request, Stream& stream,
              const Error& error) noexcept;
  void generate(const std::shared_ptr<const RequestReader>& reader, const Stream& stream);
  void submit(Request request, const Stream& stream, float waited);
  void adapt_to_older_client(Request& request) const;
  std::string limits() const;  // JSON
  void control_cache(CacheControl control, const Stream& stream, std::function<void()> on_end);
  void control_adapters(const RequestReader::AdapterControl& control);
  std::string adapter_list() const;  // JSON; mu_ is held
  void control_sleep(const RequestReader& reader, const RequestReader::SleepControl& control, const Stream& stream);
  std::string sleep_report() const;  // JSON; mu_ is held

  // Has a request begin when the model is awake, which it wakes: now, or on the sleep thread.
  void open(Open&& request, Begin begin);
  void begin(RequestId id, const Begin& begin, float waited);
  void stop(const std::string& name);
  void close(RequestId id);

  // ---- the sleep thread ----

  void tend();
  void know(const EngineConfig& config);  // mu_ is held, where other threads know this
  void load();
  void begin_waiting();
  void reject_waiting(const std::string& reason);
  void sleep(SleepLevel level);

  // ---- the watcher ----

  void watch();
  void check_open(std::unique_lock<std::mutex>& lock);
  void publish();  // mu_ is held
  void end_server(const std::string& reason);

  const ModelParameters parameters_;
  ExitWatch exit_watch_;  // the watcher's
  ModelMemory& memory_;
  EngineLoader loader_;                      // the sleep thread's
  std::atomic<bool> ends_unloaded_ = false;  // what is cancelled now had no more time to end
  EngineMetrics metrics_;                    // observe() aside, guarded by mu_
  ModelMemory::Id slot_ = 0;                 // of memory_

  mutable std::mutex mu_;
  std::condition_variable changed_;
  // Guarded by mu_.
  std::map<RequestId, Open> open_;
  std::deque<RequestId> waiting_;  // those of them that wait, in order; some have gone
  std::vector<Sleeper> sleepers_;
  RequestId next_id_ = 1;
  EarlyStops early_stops_;
  KnownAdapters adapters_;
  std::optional<EngineConfig> config_;  // of its engines, or of the first one to be
  CacheReport last_report_;             // of an engine that has ended
  std::string wake_error_;              // empty: the model was in memory since
  bool is_stopping_ = false;

  // Changed with mu_ held, by the sleep thread alone; there as long as a request is open, or held, in memory_.
  std::unique_ptr<Engine> engine_;
  std::thread sleep_thread_;  // loads and ends engines
  std::thread watcher_;  // notices clients that left, a server that stops and a failed device, and publishes metrics
};

}  // namespace turbomind
