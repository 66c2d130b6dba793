// Drafts after the first ones, on a device that chooses tokens: a step of one token a sequence is begun before the
// tokens of the step before it are known, so that the device does not wait for the host.
//
// Used by the step thread only.
#pragma once

#include <span>
#include <vector>

#include "engine/speculative/drafter.h"

namespace turbomind {

// A sequence that has one draft.
struct DraftLink {
  const Drafter::Work* work;
  int position;    // of the draft
  int prompt_len;  // as StepSpan has it; 0: all tokens so far
};

// Whether `runner` can do so.
bool can_chain(ModelRunner& runner);

// Drafts up to `count` tokens more for each; fewer after one that is no token below `vocab_size`. `hidden`
// [links, hidden_size]: what a head has made of the first drafts' rows; empty where no head drafts.
void chain_drafts(ModelRunner& runner, std::span<const DraftLink> links, std::vector<float> hidden, int count,
                  int vocab_size);

}  // namespace turbomind
