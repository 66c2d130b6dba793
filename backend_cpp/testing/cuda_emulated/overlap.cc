#include "testing/cuda_emulated/overlap.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace turbomind::emulated {

namespace {

constexpr size_t kAhead = 3;           // launches that may have begun while one runs
constexpr size_t kOtherBlockEach = 7;  // spreads the blocks that begin early over the grids of a graph

// A thread of the host that runs blocks, one at a time; it keeps its fibers from one to the next.
class Runner {
 public:
  Runner() : thread_([this] { work(); }) { thread_.detach(); }

  void begin(const Launch& launch, size_t index) {
    std::unique_lock lock(mu_);
    launch_ = &launch;
    index_ = index;
    stage_ = Stage::kBegins;
    changed_.notify_all();
    changed_.wait(lock, [this] { return stage_ != Stage::kBegins; });
  }
  // Returns when the block is done, or was given up. Throws what it threw.
  void end(bool goes_on) {
    std::unique_lock lock(mu_);
    if (stage_ == Stage::kWaits) stage_ = goes_on ? Stage::kGoesOn : Stage::kGivesUp;
    changed_.notify_all();
    changed_.wait(lock, [this] { return stage_ == Stage::kDone; });
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  enum class Stage { kDone, kBegins, kWaits, kGoesOn, kGivesUp };

  [[noreturn]] void work() {
    for (;;) {
      std::unique_lock lock(mu_);
      changed_.wait(lock, [this] { return stage_ == Stage::kBegins; });
      lock.unlock();
      std::exception_ptr error;
      try {
        run_block(*launch_, index_, [this] { return wait_for_previous(); });
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      error_ = error;
      stage_ = Stage::kDone;
      changed_.notify_all();
    }
  }
  bool wait_for_previous() {
    std::unique_lock lock(mu_);
    stage_ = Stage::kWaits;
    changed_.notify_all();
    changed_.wait(lock, [this] { return stage_ != Stage::kWaits; });
    return stage_ == Stage::kGoesOn;
  }

  std::mutex mu_;
  std::condition_variable changed_;
  Stage stage_ = Stage::kDone;  // guarded by mu_, as what follows
  const Launch* launch_ = nullptr;
  size_t index_ = 0;
  std::exception_ptr error_;
  std::thread thread_;
};

// Runners that nobody has; they live as long as the process.
std::mutex mu;
std::vector<Runner*>& free_runners() {
  static auto* const runners = new std::vector<Runner*>;
  return *runners;
}

Runner* take_runner() {
  const std::lock_guard lock(mu);
  auto& runners = free_runners();
  if (runners.empty()) return new Runner;
  Runner* runner = runners.back();
  runners.pop_back();
  return runner;
}

// A block that has begun before its launch.
class EarlyBlock {
 public:
  EarlyBlock(const Launch& launch, size_t index) : index_(index), runner_(take_runner()) {
    runner_->begin(launch, index);
  }
  ~EarlyBlock() {
    if (!has_ended_) {
      try {
        runner_->end(false);
      } catch (...) {  // another error is on its way
      }
    }
    const std::lock_guard lock(mu);
    free_runners().push_back(runner_);
  }
  EarlyBlock(const EarlyBlock&) = delete;
  EarlyBlock& operator=(const EarlyBlock&) = delete;

  size_t index() const { return index_; }
  void end() {
    has_ended_ = true;
    runner_->end(true);
  }

 private:
  size_t index_;
  Runner* runner_;
  bool has_ended_ = false;
};

}  // namespace

void run_calls(const std::vector<Call>& calls) {
  std::vector<std::unique_ptr<EarlyBlock>> early(calls.size());
  size_t next = 0;  // the first call that has not begun
  for (size_t i = 0; i < calls.size(); ++i) {
    next = std::max(next, i + 1);
    for (; next < calls.size() && next <= i + kAhead; ++next) {
      const std::optional<Launch>& launch = calls[next].launch;
      if (!launch || !launch->overlaps || !calls[next - 1].launch) break;
      early[next] = std::make_unique<EarlyBlock>(*launch, next * kOtherBlockEach % launch->block_count());
    }
    if (!calls[i].launch) {
      calls[i].work();
    } else if (early[i] == nullptr) {
      run_grid(*calls[i].launch);
    } else {
      early[i]->end();
      run_grid(*calls[i].launch, early[i]->index());
      early[i].reset();
    }
  }
}

}  // namespace turbomind::emulated
