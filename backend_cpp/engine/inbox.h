// Inbox of the step thread: requests, cancellations, shutdown.
//
// A request with a response format is first registered with expect() and delivered when its grammar is compiled. If it
// is cancelled, expires or the engine shuts down before, it goes to the step thread as abandoned immediately, and the
// compiler's later result is dropped. So no request waits forever, however long a grammar takes.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/cache_control.h"
#include "engine/grammar/grammar_queue.h"
#include "engine/request.h"

namespace turbomind {

class Inbox {
 public:
  // Requests beyond `max_waiting` are rejected.
  explicit Inbox(int max_waiting) : max_waiting_(static_cast<size_t>(max_waiting)) {}

  // ---- any thread ----

  // Queues a request. Throws Error(kUnavailable) if too many are waiting, or after close().
  void submit(Request&& request);
  // Registers a request whose grammar is being compiled; deliver() queues it. These requests have a limit of their own
  // and do not take places of others.
  void expect(Request& request);
  void deliver(Submission&& compiled);
  // Unknown ids are passed on, since the request may just have ended.
  void cancel(RequestId id);
  // Throws Error(kUnavailable) after close().
  void control(CacheControl&& control);
  // Refuses further messages and asks the step thread to exit.
  void close();
  // Wakes the step thread.
  void wake();

  // ---- the step thread ----

  struct Abandoned {
    RequestId id = 0;
    std::shared_ptr<const OutputCallback> on_output;
    int input_len = 0;
    bool is_overdue = false;  // false: cancelled
  };
  struct Messages {
    std::vector<Submission> submitted;
    std::vector<RequestId> cancelled;
    std::vector<Abandoned> abandoned;
    std::vector<CacheControl> controls;
    bool is_closed = false;
  };
  // Returns all messages. Without work, waits for the first message, wake() or `until`.
  Messages take(bool has_work, Clock::time_point until = Clock::time_point::max());
  // Sets the number of requests that the step thread has taken but not admitted.
  void set_waiting(int count);

 private:
  struct Expected {
    Abandoned caller;
    std::optional<Clock::time_point> deadline;
  };

  // mu_ is held.
  void check_open(size_t queued) const;
  bool is_empty() const;
  void abandon_overdue();

  const size_t max_waiting_;
  std::mutex mu_;
  std::condition_variable changed_;
  Messages messages_;                       // guarded by mu_
  std::map<RequestId, Expected> expected_;  // guarded by mu_
  // Guarded by mu_; lower bound of the deadlines of expected requests.
  Clock::time_point next_deadline_ = Clock::time_point::max();
  size_t waiting_ = 0;     // guarded by mu_
  bool is_woken_ = false;  // guarded by mu_
};

}  // namespace turbomind
