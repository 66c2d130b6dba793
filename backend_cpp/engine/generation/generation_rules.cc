#include "engine/generation/generation_rules.h"

#include <utility>

namespace turbomind {

namespace {

SamplingParams sampling_params(const GenerationParams& params) {
  SamplingParams rule;
  static_cast<SamplingFields&>(rule) = params;
  rule.is_greedy = params.is_greedy();
  if (params.top_p == 0) {  // the most likely token reaches a share of 0
    rule.top_k = 1;
    rule.top_p = 1;
  }
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
