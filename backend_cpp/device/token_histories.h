// Slots for the token counts of penalties: a limited number, reused in LRU order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "device/token_sampler.h"

namespace turbomind {

class TokenHistories {
 public:
  explicit TokenHistories(int count) : histories_(static_cast<size_t>(count)) {}

  // Whether the sequence has a place in the step that begins next; it keeps it until that has begun.
  bool reserve(const SamplingMetadata& choice);
  // Whether count() will ask to have the sequence counted from its beginning, which takes all its tokens.
  bool must_recount(const SamplingMetadata& choice) const;

  // The next step begins.
  void begin_step() { ++step_; }
  // The place of a reserved sequence, the token that the step chooses included; `recounts`: its counts are to begin
  // again, with the tokens that the host knows.
  int count(const SamplingMetadata& choice, bool& recounts);

 private:
  struct History {
    uint64_t sequence = 0;
    int tokens = 0;       // that were counted, the one chosen by the step under way included
    int64_t used_in = 0;  // step
  };

  const History* find(uint64_t sequence) const;
  History* find(uint64_t sequence) { return const_cast<History*>(std::as_const(*this).find(sequence)); }

  std::vector<History> histories_;
  int64_t step_ = 0;  // under way
};

}  // namespace turbomind
