#include "engine/generation/penalties.h"

namespace turbomind {

PromptTokens::PromptTokens(const SamplingParams& rule, const std::vector<int32_t>& prompt, int vocab_size) {
  if (rule.repetition_penalty == 1) return;
  is_there_.resize(static_cast<size_t>(vocab_size));
  for (const int32_t token : prompt) {
    if (contains(token)) continue;
    is_there_[static_cast<size_t>(token)] = true;
    all_.push_back(token);
  }
}

void Penalties::note(int32_t token) {
  if (counts_tokens()) ++counts_[token];
}

void Penalties::apply(float* logits) const {
  const auto repeat = [&](int32_t token) {
    float& logit = logits[token];
    logit = logit > 0 ? logit / rule_.repetition_penalty : logit * rule_.repetition_penalty;
  };
  if (rule_.repetition_penalty != 1) {
    for (const int32_t token : prompt_.all()) repeat(token);
    for (const auto& [token, count] : counts_) {
      if (!prompt_.contains(token)) repeat(token);
    }
  }
  if (rule_.presence_penalty != 0 || rule_.frequency_penalty != 0) {
    for (const auto& [token, count] : counts_) {
      logits[token] -= rule_.presence_penalty + rule_.frequency_penalty * static_cast<float>(count);
    }
  }
  for (const auto& [token, bias] : biases_) logits[token] += bias;
}

}  // namespace turbomind
