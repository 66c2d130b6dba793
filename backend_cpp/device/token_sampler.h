// Chooses tokens where the logits are, without the host in between.
//
// A step calls begin, place, choose for all its choices, and end; take may come later, after the next step began.
#pragma once

#include <cstdint>
#include <vector>

#include "device/token_choice.h"

namespace turbomind {

// A token of a step that the step before chooses.
struct InFlightToken {
  int row;     // of the step
  int choice;  // of the step before
};

class TokenSampler {
 public:
  virtual ~TokenSampler() = default;

  // Whether the step that begins next can choose so; it then must. Room for penalties, masks and lists is limited.
  virtual bool reserve(const TokenChoice& choice) = 0;

  virtual void begin(const std::vector<const TokenChoice*>& choices) = 0;
  // Puts unseen tokens into their rows of `tokens` (the device's).
  virtual void place(const std::vector<InFlightToken>& in_flight, int32_t* tokens) = 0;
  // Chooses number first to first + count - 1. logits [count, vocab] (the device's), changed.
  virtual void choose(int first, int count, float* logits) = 0;
  virtual void end() = 0;
  // Waits for the oldest step that ended and was not taken, also if it chose nothing. Its choices, in order, valid
  // until the next call.
  virtual const ChosenToken* take() = 0;
  // For how long the device has worked on that step.
  virtual double seconds_taken() const = 0;
};

}  // namespace turbomind
