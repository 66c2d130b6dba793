// Compiles requests' grammars on a thread of its own, so that the step thread never waits for one.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/grammar.h"
#include "engine/request.h"

namespace turbomind {

// A request on its way to the step thread.
struct Submission {
  Request request;
  std::shared_ptr<const Grammar> grammar;  // null: none
  std::optional<Error> failure;            // the grammar could not be compiled
};

class GrammarQueue {
 public:
  // `on_ready` gets each request back, on the queue's thread.
  GrammarQueue(std::unique_ptr<GrammarCompiler> compiler, std::function<void(Submission&&)> on_ready);
  // Requests not compiled yet are dropped.
  ~GrammarQueue();

  void add(Request&& request);

 private:
  void run();

  std::unique_ptr<GrammarCompiler> compiler_;
  std::function<void(Submission&&)> on_ready_;
  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Request> requests_;  // guarded by mu_
  bool is_stopping_ = false;      // guarded by mu_
  std::thread thread_;
};

}  // namespace turbomind
