// Messages of any thread to the step thread: requests, cancellations, the end.
//
// A request with a response format is expected first and comes in when its grammar is compiled. Until then the inbox
// answers for it: cancelled, overdue or caught by the end, it is handed to the step thread as abandoned, at once, and
// what the compiler brings later is dropped. So no request waits forever, however long a grammar takes.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/control/cache_control.h"
#include "engine/grammar/grammar_queue.h"
#include "engine/request.h"

namespace turbomind {

class Inbox {
 public:
  // Requests beyond `max_waiting` are refused.
  explicit Inbox(int max_waiting) : max_waiting_(static_cast<size_t>(max_waiting)) {}

  // ---- any thread ----

  // Takes a request for the step thread. Throws Error(kUnavailable) when too many wait, or after close().
  void submit(Request&& request);
  // The same for a request whose grammar is compiled first; deliver() brings it. Those that wait for grammars are
  // counted for themselves: they keep no others out.
  void expect(Request& request);
  void deliver(Submission&& compiled);
  // Unknown ids are handed on: the request may just have ended.
  void cancel(RequestId id);
  // Throws Error(kUnavailable) after close().
  void control(CacheControl&& control);
  // Nothing more is taken; the step thread is to end.
  void close();
  // The step thread is to look again.
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
  // Takes what has come; without work of its own to do the step thread waits for the first message, wake() or that
  // time.
  Messages take(bool has_work, Clock::time_point until = Clock::time_point::max());
  // How many requests the step thread has taken and not begun.
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
  // Guarded by mu_; none of an expected request is earlier.
  Clock::time_point next_deadline_ = Clock::time_point::max();
  size_t waiting_ = 0;     // guarded by mu_
  bool is_woken_ = false;  // guarded by mu_
};

}  // namespace turbomind
