// Outputs for a prompt's own tokens, as requested: a score, log probabilities, logits, hidden states.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/generation/generation_rules.h"
#include "engine/request.h"

namespace turbomind {

class PromptOutputs {
 public:
  // Only the first response (index 0) has log probabilities.
  PromptOutputs(const GenerationRules& rules, int index) : rules_(rules), is_first_response_(index == 0) {}

  // Adds the requested outputs of positions [first, first + count) of `tokens` to `output`. Positions taken before a
  // preemption are skipped, and so is the prompt's last, which predicts the response. logits [count, vocab], hidden
  // [count, hidden].
  void take(const std::vector<int32_t>& tokens, int first, int count, const float* logits, const float* hidden,
            Output& output);

 private:
  void take_token(int32_t next_token, const float* logits, const float* hidden, Output& output) const;
  bool wants_logprobs() const { return rules_.params.prompt_logprobs && is_first_response_; }

  const GenerationRules& rules_;
  bool is_first_response_;
  int taken_ = 0;  // leading positions that were taken
};

}  // namespace turbomind
