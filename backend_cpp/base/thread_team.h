// Team of threads that run one function in parallel, each on its part.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace turbomind {

class ThreadTeam {
 public:
  // `on_failure` is called, in its thread, for each member whose call has thrown, while others may still be in theirs.
  ThreadTeam(int size, std::function<void()> on_failure);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return static_cast<int>(members_.size()); }
  // Calls body(member) once on each member's thread, always the same thread for a member, and returns when all have
  // returned. Throws what was thrown first. One caller at a time.
  void run(const std::function<void(int member)>& body);

 private:
  void work(int member);

  std::function<void()> on_failure_;
  std::mutex mu_;
  std::condition_variable begun_;
  std::condition_variable ended_;
  const std::function<void(int)>* body_ = nullptr;  // guarded by mu_, like what follows
  uint64_t calls_ = 0;
  int running_ = 0;
  bool is_stopping_ = false;
  std::exception_ptr failure_;
  std::vector<std::thread> members_;
};

}  // namespace turbomind
