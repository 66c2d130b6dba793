#include "engine/generation/prompt_outputs.h"

#include <cmath>

#include "engine/generation/log_probabilities.h"

namespace turbomind {

void PromptOutputs::take(const std::vector<int32_t>& tokens, int first, int count, const float* logits,
                         const float* hidden, Output& output) {
  if (rules_.params.output_token_embeddings) {  // of an encoder, whose text comes whole and has no logits
    output.embedding.assign(hidden,
                            hidden + static_cast<size_t>(count) * static_cast<size_t>(rules_.space.hidden_size));
    return;
  }
  if (wants_logprobs() && first == 0 && taken_ == 0) {
    const auto top = static_cast<size_t>(*rules_.params.prompt_logprobs);
    output.prompt_logprobs = {{std::nanf(""), {top, {-1, std::nanf("")}}}};  // nothing predicts the first token
  }
  for (int i = 0; i < count; ++i) {
    const int position = first + i;
    if (position < taken_ || position >= rules_.prompt_len - 1) continue;
    taken_ = position + 1;
    const auto at = static_cast<size_t>(i);
    take_token(tokens[static_cast<size_t>(position) + 1], logits + at * static_cast<size_t>(rules_.space.vocab_size),
               hidden + at * static_cast<size_t>(rules_.space.hidden_size), output);
  }
}

void PromptOutputs::take_token(int32_t next_token, const float* logits, const float* hidden, Output& output) const {
  const GenerationParams& params = rules_.params;
  const int vocab = rules_.space.vocab_size;
  if (params.scores_prompt) {
    output.score += negative_log_probability(logits, vocab, next_token);
    ++output.scored_tokens;
  }
  if (wants_logprobs()) {
    output.prompt_logprobs.push_back(log_probabilities(logits, vocab, next_token, *params.prompt_logprobs));
  }
  if (params.logits == RowsWanted::kAll) output.logits.insert(output.logits.end(), logits, logits + vocab);
  if (params.hidden_states == RowsWanted::kAll) {
    output.hidden_states.insert(output.hidden_states.end(), hidden, hidden + rules_.space.hidden_size);
  }
}

}  // namespace turbomind
