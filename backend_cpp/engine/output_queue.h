// Hands outputs to their callers on a thread of its own, so that a slow reader never stalls a step.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "engine/request.h"

namespace turbomind {

class OutputQueue {
 public:
  OutputQueue() : thread_([this] { run(); }) {}
  // Delivers what is queued, then stops.
  ~OutputQueue();

  // Adds a step's outputs, each with its callback. Any thread.
  void push(std::vector<std::pair<OutputCallback, Output>>&& outputs);

 private:
  void run();

  std::mutex mu_;
  std::condition_variable ready_;
  std::vector<std::pair<OutputCallback, Output>> queue_;  // guarded by mu_
  bool is_stopping_ = false;                              // guarded by mu_
  std::thread thread_;
};

}  // namespace turbomind
