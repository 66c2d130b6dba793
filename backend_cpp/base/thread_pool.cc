#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>

#include "base/cpu_share.h"

namespace turbomind {

namespace {

constexpr int kSpinsBeforeSleep = 20000;  // about 0.2 to 0.8 ms of pause instructions
constexpr int kSpinsBeforeYield = 2000;
constexpr int kLowerNiceness = 3;  // half the share of a thread of normal priority

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
  stopping_ = true;
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

bool ThreadPool::claim_and_run_one() {
  const uint64_t ticket = ticket_.fetch_add(1, std::memory_order_acq_rel);
  const auto chunk = static_cast<uint32_t>(ticket);
  if (chunk >= static_cast<uint32_t>(ticket >> 32)) return false;
  call_(context_, static_cast<int>(chunk));
  done_.fetch_add(1, std::memory_order_release);
  return true;
}

void ThreadPool::run(int chunks, Call call, void* context) {
  call_ = call;
  context_ = context;
  done_.store(0, std::memory_order_relaxed);
  ticket_.store(static_cast<uint64_t>(chunks) << 32, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) epoch_.notify_all();
  while (claim_and_run_one()) {
  }
  for (int spins = 0; done_.load(std::memory_order_acquire) != chunks; ++spins) {
    if (spins < kSpinsBeforeYield) {
      pause_cpu();
    } else {
      sched_yield();
    }
  }
}

void ThreadPool::lower_priority() {
  has_lower_priority_ = true;
  lower_thread_priority(kLowerNiceness);
}

void ThreadPool::work() {
  uint32_t seen = 0;  // a loop may have begun before the thread did
  int spins = 0;
  bool is_lowered = false;
  while (!stopping_.load(std::memory_order_relaxed)) {
    const uint32_t now = epoch_.load(std::memory_order_acquire);
    if (now != seen) {
      seen = now;
      spins = 0;
      if (!is_lowered && has_lower_priority_.load(std::memory_order_relaxed)) {
        lower_thread_priority(kLowerNiceness);
        is_lowered = true;
      }
      while (claim_and_run_one()) {
      }
    } else if (++spins < kSpinsBeforeSleep) {
      pause_cpu();
    } else {
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      epoch_.wait(seen, std::memory_order_seq_cst);
      sleepers_.fetch_sub(1, std::memory_order_relaxed);
      spins = 0;
    }
  }
}

}  // namespace turbomind
