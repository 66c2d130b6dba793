// What the model says of a prompt's own tokens, kept for the caller who asked: a score, log probabilities, logits,
// hidden states.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/generation/generation_rules.h"
#include "engine/request.h"

namespace turbomind {

class PromptOutputs {
 public:
  // Log probabilities come with the first response alone.
  PromptOutputs(const GenerationRules& rules, int index) : rules_(rules), is_first_response_(index == 0) {}

  // Takes what was computed of positions [first, first + count) of `tokens` and adds what is wanted to `output`. Those
  // seen before a preemption are skipped, and that of the last token of the prompt: it is the response's first. logits
  // [count, vocab], hidden [count, hidden].
  void take(const std::vector<int32_t>& tokens, int first, int count, const float* logits, const float* hidden,
            Output& output);

 private:
  void take_token(int32_t next_token, const float* logits, const float* hidden, Output& output) const;
  bool wants_logprobs() const { return rules_.params.prompt_logprobs && is_first_response_; }

  const GenerationRules& rules_;
  bool is_first_response_;
  int taken_ = 0;  // leading positions whose tokens were taken
};

}  // namespace turbomind
