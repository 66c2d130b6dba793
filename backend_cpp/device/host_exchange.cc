#include "device/host_exchange.h"

#include <algorithm>
#include <thread>

#include "base/error.h"

namespace turbomind {

namespace {

constexpr int kSpinsBeforeSleep = 200;  // of yielding: a rank's threads may need the CPU this one is on
constexpr size_t kBlock = 1024;         // elements summed at a time

}  // namespace

void HostExchange::all_reduce(int rank, float* data, size_t count) {
  buffers_[static_cast<size_t>(rank)] = data;
  barrier();
  // A rank sums its own part of the elements, and writes it to all.
  const size_t ranks = buffers_.size();
  const size_t end = count * (static_cast<size_t>(rank) + 1) / ranks;
  float sums[kBlock];
  for (size_t first = count * static_cast<size_t>(rank) / ranks; first < end; first += kBlock) {
    const size_t size = std::min(kBlock, end - first);
    std::copy_n(buffers_[0] + first, size, sums);
    for (size_t other = 1; other < ranks; ++other) {
      const float* more = buffers_[other] + first;
      for (size_t i = 0; i < size; ++i) sums[i] += more[i];
    }
    for (float* buffer : buffers_) std::copy_n(sums, size, buffer + first);
  }
  barrier();
}

void HostExchange::all_gather(int rank, float* data, size_t count) {
  buffers_[static_cast<size_t>(rank)] = data;
  barrier();
  for (size_t other = 0; other < buffers_.size(); ++other) {
    const size_t first = other * count;
    if (other != static_cast<size_t>(rank)) std::copy_n(buffers_[other] + first, count, data + first);
  }
  barrier();
}

void HostExchange::barrier() {
  const uint32_t phase = barriers_.load(std::memory_order_acquire);
  check();  // a failure from here on ends the meeting that was loaded
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == buffers_.size()) {
    arrived_.store(0, std::memory_order_relaxed);
    barriers_.fetch_add(1, std::memory_order_acq_rel);
    barriers_.notify_all();
    return;
  }
  for (int spins = 0; barriers_.load(std::memory_order_acquire) == phase; ++spins) {
    if (spins < kSpinsBeforeSleep) {
      std::this_thread::yield();
    } else {
      barriers_.wait(phase, std::memory_order_acquire);
    }
  }
  check();
}

void HostExchange::check() const {
  if (has_failed_.load(std::memory_order_acquire)) throw internal_error("another rank of the model has failed");
}

void HostExchange::fail() noexcept {
  has_failed_.store(true, std::memory_order_release);
  barriers_.fetch_add(1, std::memory_order_acq_rel);
  barriers_.notify_all();
}

}  // namespace turbomind
