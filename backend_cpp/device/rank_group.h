// The devices that hold the shards of one model: a rank each.
#pragma once

#include <memory>
#include <string>

#include "device/operators.h"

namespace turbomind {

class RankGroup {
 public:
  virtual ~RankGroup() = default;

  virtual int size() const = 0;
  // The operators of a rank, whose all_reduce and all_gather are of this group; they may outlive it. To be called, and
  // they to be used and destroyed, in a thread of the rank's own.
  virtual std::unique_ptr<Operators> make_operators(int rank) = 0;
  // For a rank that cannot continue: what waits for it in another throws, and so does every later sum and gathering.
  // From any thread.
  virtual void fail() noexcept = 0;
};

}  // namespace turbomind
