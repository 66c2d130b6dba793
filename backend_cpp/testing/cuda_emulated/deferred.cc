#include "testing/cuda_emulated/deferred.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "testing/cuda_emulated/faults.h"
#include "testing/cuda_emulated/launch_limits.h"
#include "testing/cuda_emulated/runtime.h"

namespace turbomind::emulated {

namespace {

constexpr unsigned kOneIn = 8;  // how often some of the work is done early

std::atomic<uint64_t> seed{0};
std::mutex mu;
std::map<const std::byte*, size_t, std::greater<>> staging;  // guarded by mu

// Memory that is read, and what was there when that was asked for.
struct Read {
  const std::byte* memory;
  std::vector<std::byte> content;
};

struct Work {
  std::function<void()> run;
  std::vector<Read> reads;
};

struct Stream {
  std::deque<Work> kept;
  std::vector<Read> reads;  // of the work that is kept next
  std::mt19937_64 random{seed.load()};

  void finish(size_t count) {
    for (; count > 0 && !kept.empty(); --count) {
      const Work work = std::move(kept.front());
      kept.pop_front();
      for (const Read& read : work.reads) {
        if (!std::equal(read.content.begin(), read.content.end(), read.memory)) {
          count_call("staging memory changed too early");
        }
      }
      work.run();
    }
  }
};

Stream& stream() {
  thread_local Stream this_stream;
  return this_stream;
}

}  // namespace

void defer_work(uint64_t from) {
  finish_work();
  seed = from;
}

bool is_deferring() {
  return seed != 0;
}

void record_read(const void* memory, size_t bytes) {
  if (!is_deferring() || is_capturing() || only_checks_launches()) return;
  const auto* first = static_cast<const std::byte*>(memory);
  stream().reads.push_back({first, {first, first + bytes}});
}

void record_written(const void* memory, size_t bytes) {
  const auto* first = static_cast<const std::byte*>(memory);
  for (Work& work : stream().kept) {
    for (Read& read : work.reads) {
      const std::byte* begin = std::max(first, read.memory);
      const std::byte* end = std::min(first + bytes, read.memory + read.content.size());
      if (begin < end) std::copy(begin, end, read.content.begin() + (begin - read.memory));
    }
  }
}

void keep_work(std::function<void()> work) {
  Stream& this_stream = stream();
  this_stream.kept.push_back({std::move(work), std::exchange(this_stream.reads, {})});
  if (this_stream.random() % kOneIn == 0) this_stream.finish(1 + this_stream.random() % this_stream.kept.size());
}

void finish_work() {
  Stream& this_stream = stream();
  this_stream.finish(this_stream.kept.size());
}

void record_staging(void* memory, size_t bytes) {
  const std::lock_guard lock(mu);
  staging[static_cast<const std::byte*>(memory)] = bytes;
}

void erase_staging(void* memory) {
  const std::lock_guard lock(mu);
  staging.erase(static_cast<const std::byte*>(memory));
}

bool is_staging(const void* memory) {
  const auto* address = static_cast<const std::byte*>(memory);
  const std::lock_guard lock(mu);
  const auto found = staging.lower_bound(address);  // the last that begins at or before it
  return found != staging.end() && address < std::next(found->first, static_cast<std::ptrdiff_t>(found->second));
}

}  // namespace turbomind::emulated
