// Client of the process that publishes KV events (lmdeploy/kv_events/publisher.py).
//
//   step thread: push --> queue --> its own thread: lines --> socket --> the process --> ZMQ
//
// The step thread never waits. When the queue is full or the process has exited, the queue is dropped, the process is
// restarted if necessary, and all contents of the cache are reported again. Batches are numbered, so readers notice
// missing ones.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/file_descriptor.h"
#include "engine/events/cache_event.h"
#include "engine/stats.h"
#include "model/worker/worker_process.h"

namespace turbomind {

// The events of a step.
struct CacheEventBatch {
  uint64_t sequence = 0;
  std::vector<CacheEvent> events;
};

class EventPublisher final : public CacheEventSink {
 public:
  static constexpr size_t kMaxBytes = size_t{64} << 20;  // of queued events

  // Starts `command` and waits until it can publish. Throws Error with the reason if it cannot.
  EventPublisher(std::vector<std::string> command, int block_len, size_t max_bytes = kMaxBytes);
  // Gives the process a moment to publish queued events, and ends it.
  ~EventPublisher() override;

  // `wake` is called on the publisher's thread when all contents have to be reported. Call once, before the first push.
  void notify(std::function<void()> wake) { wake_ = std::move(wake); }

  State state() const override;
  void push(std::vector<CacheEvent>&& events) override;

  EventCounts counts() const;

 private:
  void start();
  void run();
  bool send(const std::string& line);
  void start_again(std::unique_lock<std::mutex>& lock);
  void lose();  // mu_ is held

  const std::vector<std::string> command_;
  const int block_len_;
  const size_t max_bytes_;
  std::function<void()> wake_ = [] {};
  // Used by the thread, and the destructor.
  FileDescriptor socket_;
  std::unique_ptr<WorkerProcess> process_;

  mutable std::mutex mu_;
  std::condition_variable changed_;
  // Guarded by mu_.
  std::deque<CacheEventBatch> queue_;
  size_t queued_bytes_ = 0;
  State state_ = State::kFollows;
  EventCounts counts_;
  bool has_ended_ = false;  // the thread

  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

}  // namespace turbomind
