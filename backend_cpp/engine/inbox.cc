#include "engine/inbox.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"

namespace turbomind {

void Inbox::check_open(size_t queued) const {
  if (messages_.is_closed) throw Error(ErrorCode::kUnavailable, "the engine is shutting down");
  if (queued >= max_waiting_) {
    throw Error(ErrorCode::kUnavailable, "overloaded: " + std::to_string(queued) + " requests are waiting already");
  }
}

void Inbox::submit(Request&& request) {
  const std::lock_guard lock(mu_);
  check_open(messages_.submitted.size() + waiting_);
  messages_.submitted.push_back({std::move(request), nullptr, std::nullopt});
  changed_.notify_one();
}

void Inbox::expect(Request& request) {
  const std::lock_guard lock(mu_);
  check_open(expected_.size());
  const auto on_output = std::make_shared<const OutputCallback>(request.on_output);
  const Abandoned caller{request.id, on_output, static_cast<int>(request.input_ids.size())};
  expected_.emplace(request.id, Expected{caller, request.deadline});
  if (request.deadline) next_deadline_ = std::min(next_deadline_, *request.deadline);
  changed_.notify_one();  // it may have the earliest deadline
}

void Inbox::deliver(Submission&& compiled) {
  const std::lock_guard lock(mu_);
  if (expected_.erase(compiled.request.id) == 0) return;
  messages_.submitted.push_back(std::move(compiled));
  changed_.notify_one();
}

void Inbox::cancel(RequestId id) {
  const std::lock_guard lock(mu_);
  if (const auto it = expected_.find(id); it != expected_.end()) {
    messages_.abandoned.push_back(std::move(it->second.caller));
    expected_.erase(it);
  } else {
    messages_.cancelled.push_back(id);
  }
  changed_.notify_one();
}

void Inbox::control(CacheControl&& control) {
  const std::lock_guard lock(mu_);
  if (messages_.is_closed) throw Error(ErrorCode::kUnavailable, "the engine is shutting down");
  messages_.controls.push_back(std::move(control));
  changed_.notify_one();
}

void Inbox::close() {
  const std::lock_guard lock(mu_);
  messages_.is_closed = true;
  for (auto& [id, expected] : expected_) messages_.abandoned.push_back(std::move(expected.caller));
  expected_.clear();
  changed_.notify_one();
}

void Inbox::wake() {
  const std::lock_guard lock(mu_);
  is_woken_ = true;
  changed_.notify_one();
}

Inbox::Messages Inbox::take(bool has_work, Clock::time_point until) {
  std::unique_lock lock(mu_);
  abandon_overdue();
  while (!has_work && !is_woken_ && is_empty() && Clock::now() < until) {
    const Clock::time_point next = std::min(next_deadline_, until);
    if (next == Clock::time_point::max()) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, next);
    }
    abandon_overdue();
  }
  is_woken_ = false;
  Messages taken = std::exchange(messages_, {});
  messages_.is_closed = taken.is_closed;
  waiting_ += taken.submitted.size();
  return taken;
}

bool Inbox::is_empty() const {
  return !messages_.is_closed && messages_.submitted.empty() && messages_.cancelled.empty() &&
         messages_.abandoned.empty() && messages_.controls.empty();
}

void Inbox::set_waiting(int count) {
  const std::lock_guard lock(mu_);
  waiting_ = static_cast<size_t>(count);
}

void Inbox::abandon_overdue() {
  const auto now = Clock::now();
  if (now < next_deadline_) return;
  next_deadline_ = Clock::time_point::max();
  for (auto it = expected_.begin(); it != expected_.end();) {
    auto& [caller, deadline] = it->second;
    if (deadline && *deadline <= now) {
      caller.is_overdue = true;
      messages_.abandoned.push_back(std::move(caller));
      it = expected_.erase(it);
    } else {
      if (deadline) next_deadline_ = std::min(next_deadline_, *deadline);
      ++it;
    }
  }
}

}  // namespace turbomind
