#include "base/thread_team.h"

#include <utility>

namespace turbomind {

ThreadTeam::ThreadTeam(int size, std::function<void()> on_failure) : on_failure_(std::move(on_failure)) {
  for (int member = 0; member < size; ++member) members_.emplace_back([this, member] { work(member); });
}

ThreadTeam::~ThreadTeam() {
  {
    const std::lock_guard lock(mu_);
    is_stopping_ = true;
  }
  begun_.notify_all();
  for (std::thread& member : members_) member.join();
}

void ThreadTeam::run(const std::function<void(int)>& body) {
  std::unique_lock lock(mu_);
  body_ = &body;
  running_ = size();
  failure_ = nullptr;
  ++calls_;
  begun_.notify_all();
  ended_.wait(lock, [this] { return running_ == 0; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadTeam::work(int member) {
  uint64_t done = 0;
  std::unique_lock lock(mu_);
  while (true) {
    begun_.wait(lock, [&] { return is_stopping_ || calls_ != done; });
    if (is_stopping_) return;
    done = calls_;
    const std::function<void(int)>& body = *body_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      body(member);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure) {
      if (!failure_) failure_ = failure;
      lock.unlock();
      on_failure_();
      lock.lock();
    }
    failure = nullptr;  // before the caller continues: it may be the last to hold the exception
    if (--running_ == 0) ended_.notify_one();
  }
}

}  // namespace turbomind
