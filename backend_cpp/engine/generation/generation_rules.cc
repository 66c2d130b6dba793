#include "engine/generation/generation_rules.h"

#include <utility>

namespace turbomind {

namespace {

SamplingParams sampling_params(const GenerationParams& params) {
  SamplingParams rule;
  rule.is_greedy = params.is_greedy();
  rule.temperature = params.temperature;
  const bool is_one_token = params.top_p == 0;  // the most likely token reaches a share of 0
  rule.top_k = is_one_token ? 1 : params.top_k;
  rule.top_p = is_one_token ? 1 : params.top_p;
  rule.min_p = params.min_p;
  rule.top_n_sigma = params.top_n_sigma;
  rule.repetition_penalty = params.repetition_penalty;
  rule.presence_penalty = params.presence_penalty;
  rule.frequency_penalty = params.frequency_penalty;
  return rule;
}

// A token that never occurs is the shortest of such sequences.
GenerationParams with_bad_tokens(GenerationParams params) {
  for (const int32_t token : params.bad_token_ids) params.bad_tokens.push_back({token});
  params.bad_token_ids.clear();
  return params;
}

}  // namespace

GenerationRules::GenerationRules(GenerationParams given, const OutputSpace& of, const std::vector<int32_t>& prompt,
                                 std::shared_ptr<const Grammar> constraint)
    : params(with_bad_tokens(std::move(given))),
      space(of),
      prompt_len(static_cast<int>(prompt.size())),
      sampling(sampling_params(params)),
      stop_strings(string_patterns(params.stop_words)),
      bad_words(params.bad_words, params.bad_tokens, space.tokens),
      prompt_tokens(sampling, prompt, space.vocab_size),
      grammar(std::move(constraint)) {}

}  // namespace turbomind
