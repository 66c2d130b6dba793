// Data-parallel loops for the step thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace turbomind {

// Workers claim chunks one by one, so a worker that the operating system has preempted delays only the chunk it holds,
// never the loop. Workers spin briefly between loops (a decoder runs hundreds of loops a step, microseconds apart) and
// sleep when nothing comes, so an idle pool uses no CPU.
class ThreadPool {
 public:
  // `threads` counts the calling thread: a pool of 1 starts no worker.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int thread_count() const { return static_cast<int>(workers_.size()) + 1; }

  // From the next loop on, other threads of the machine go before the workers; before the calling thread at once.
  void lower_priority();

  // Calls body(chunk) once for every chunk in [0, chunks), the caller taking part; returns when all are done.
  // One caller at a time; body must not throw and must not call parallel_for.
  template <class Body>
  void parallel_for(int chunks, Body&& body) {
    if (chunks <= 1 || workers_.empty()) {
      for (int chunk = 0; chunk < chunks; ++chunk) body(chunk);
      return;
    }
    using Function = std::remove_reference_t<Body>;
    run(
        chunks, [](void* context, int chunk) { (*static_cast<Function*>(context))(chunk); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Call = void (*)(void* context, int chunk);

  void run(int chunks, Call call, void* context);
  bool claim_and_run_one();
  void work();

  // High half: chunks of the current loop; low half: next chunk to claim. A claim succeeds only while the loop that
  // owns it waits for it, so call_ and context_ are stable between a successful claim and the matching done_ increment.
  std::atomic<uint64_t> ticket_{0};
  std::atomic<int> done_{0};
  Call call_ = nullptr;
  void* context_ = nullptr;

  std::atomic<uint32_t> epoch_{0};  // counts loops; sleeping workers wait on it
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> has_lower_priority_{false};
  std::vector<std::thread> workers_;
};

}  // namespace turbomind
