// Hands outputs to their callers on its own thread, so that a slow reader never stalls a step.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
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
  ~OutputQueue();

  // Adds a step's outputs. Any thread.
  void push(std::vector<Delivery>&& deliveries);

 private:
  void run();

  std::mutex mu_;
  std::condition_variable ready_;
  std::vector<Delivery> queue_;  // guarded by mu_
  bool is_stopping_ = false;     // guarded by mu_
  std::thread thread_;
};

}  // namespace turbomind
