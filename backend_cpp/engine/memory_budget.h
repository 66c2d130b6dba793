// Memory that requests and sessions may hold together for something.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"

namespace turbomind {

class MemoryBudget {
 public:
  // `what` is named when memory runs out.
  MemoryBudget(size_t limit, std::string what) : limit_(limit), what_(std::move(what)) {}

  // Takes this many bytes, which come back when the last copy of the share goes. Throws Error(kUnavailable). Any
  // thread.
  std::shared_ptr<const void> take(size_t bytes) const {
    size_t used = *used_;
    do {
      if (bytes > limit_ - used) {
        throw Error(ErrorCode::kUnavailable, "overloaded: " + what_ + " may take " + std::to_string(limit_ >> 20) +
                                                 " MiB, and " + std::to_string(used >> 20) + " MiB are in use");
      }
    } while (!used_->compare_exchange_weak(used, used + bytes));
    return {static_cast<const void*>(used_.get()), [used = used_, bytes](const void*) { *used -= bytes; }};
  }

 private:
  size_t limit_;
  std::string what_;
  std::shared_ptr<std::atomic<size_t>> used_ = std::make_shared<std::atomic<size_t>>(0);
};

}  // namespace turbomind
