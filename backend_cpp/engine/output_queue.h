// Delivery thread for outputs, so that a slow reader never stalls a step.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "engine/request.h"

namespace turbomind {

struct Delivery {
  std::shared_ptr<const OutputCallback> to;
  Output output;
};

class OutputQueue {
 public:
  OutputQueue() : thread_([this] { run(); }) {}
  // Delivers what is queued, then stops.
  ~OutputQueue() {
    {
      const std::lock_guard lock(mu_);
      is_stopping_ = true;
    }
    ready_.notify_one();
    thread_.join();
  }

  // Adds a step's outputs. Any thread.
  void push(std::vector<Delivery>&& deliveries) {
    if (deliveries.empty()) return;
    {
      const std::lock_guard lock(mu_);
      for (Delivery& delivery : deliveries) queue_.push_back(std::move(delivery));
    }
    ready_.notify_one();
  }

 private:
  void run() {
    std::vector<Delivery> batch;
    while (true) {
      {
        std::unique_lock lock(mu_);
        ready_.wait(lock, [this] { return is_stopping_ || !queue_.empty(); });
        if (queue_.empty()) return;
        batch.swap(queue_);
      }
      for (auto& [to, output] : batch) (*to)(std::move(output));
      batch.clear();
    }
  }

  std::mutex mu_;
  std::condition_variable ready_;
  std::vector<Delivery> queue_;  // guarded by mu_
  bool is_stopping_ = false;     // guarded by mu_
  std::thread thread_;
};

}  // namespace turbomind
