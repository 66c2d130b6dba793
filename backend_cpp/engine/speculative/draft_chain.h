// Drafts after the first ones, on a device that samples tokens: a step of one token a sequence is launched before the
// tokens of the previous step are known, so the device does not wait for the host.
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
  int prompt_len;  // as in StepSpan; 0: all tokens so far
};

// Whether `runner` supports it.
bool can_chain(ModelRunner& runner);

// Drafts up to `count` more tokens for each; fewer after a draft of `vocab_size` or above. `hidden`
// [links, hidden_size]: a head's hidden states of the first drafts; empty for a draft model.
void chain_drafts(ModelRunner& runner, std::span<const DraftLink> links, std::vector<float> hidden, int count,
                  int vocab_size);

}  // namespace turbomind
