// Common rules of the responses to one request: how their tokens are chosen, what must not occur, what ends
// them. Made once a request, shared by its responses, changed by nobody.
//
// Used by the step thread only.
#pragma once

#include <memory>
#include <vector>

#include "engine/generation/bad_words.h"
#include "engine/generation/sampler.h"
#include "engine/generation/text_stream.h"
#include "engine/generation/token_table.h"
#include "engine/grammar/grammar.h"
#include "engine/request.h"
#include "kernels/sampling.h"

namespace turbomind {

// Model facts for a response. The table must outlive the rules.
struct OutputSpace {
  const TokenTable& tokens;
  int vocab_size;
  int hidden_size;
};

struct GenerationRules {
  GenerationRules(GenerationParams given, const OutputSpace& of, const std::vector<int32_t>& prompt,
                  std::shared_ptr<const Grammar> constraint = nullptr);
  GenerationRules(const GenerationRules&) = delete;  // its members look at each other

  const GenerationParams params;
  const OutputSpace space;
  const int prompt_len;
  const SamplingParams sampling;  // but for seed and draw, which are a response's own
  const std::vector<StringPattern> stop_strings;
  const BadWords bad_words;
  const PromptTokens prompt_tokens;
  const std::shared_ptr<const Grammar> grammar;  // null: free text
};

}  // namespace turbomind
