// Generation of one response: samples the next token, converts tokens to text, detects the end, and collects output.
//
// Tokens are sampled here from the model's logits, or by a runner that samples with choice(). In both cases penalties,
// forbidden tokens and the grammar apply before sampling, and grammar, text and limits are updated after it.
//
// Independent of blocks, steps and other responses. Used by the step thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/token_sampler.h"
#include "engine/generation/bad_words.h"
#include "engine/generation/repetition_detector.h"
#include "engine/generation/sampler.h"
#include "engine/generation/text_stream.h"
#include "engine/generation/thinking_budget.h"
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

// Common rules of the responses to one request: how their tokens are chosen, what must not occur, what ends them. Made
// once a request, shared by its responses, changed by nobody.
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

// Outputs for a prompt's own tokens, as requested: a score, log probabilities, logits, hidden states.
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
  bool needs_logprobs() const { return rules_.params.prompt_logprobs && is_first_response_; }

  const GenerationRules& rules_;
  bool is_first_response_;
  int taken_ = 0;  // leading positions that were taken
};

class Generation {
 public:
  // `tokens` holds the prompt, receives the response's tokens, and must outlive this object. The responses to a request
  // differ in `index`; each has its own random stream, derived from `seed`. `sequence` is SamplingMetadata::sequence.
  Generation(std::shared_ptr<const GenerationRules> rules, int index, uint64_t seed, uint64_t sequence,
             std::vector<int32_t>& tokens);
  Generation(const Generation&) = delete;

  // Number of generated tokens.
  int generated() const { return static_cast<int>(tokens_.size()) - rules_->prompt_len; }

  // ---- the next token ----

  // Whether only this class can choose it, because its logits are needed on the host.
  bool needs_logits() const;
  // Whether the allowed tokens depend on the previous tokens.
  bool needs_known_tokens() const {
    return matcher_ != nullptr || thinking_.is_bound() || rules_->bad_words.depends_on_tokens();
  }
  // Whether it can verify draft tokens.
  bool can_take_drafts() const { return generated() > 0; }
  // Whether its grammar lets nothing more come, not even a token that ends it.
  bool is_complete() const { return matcher_ && matcher_->state().is_finished; }
  // Sampling instructions for a runner, for the token after the known ones and `in_flight` more. Valid until the next
  // call.
  const SamplingMetadata& choice(int in_flight);

  // Appends the next token, and those after it that a grammar forces: sampled from logits [vocab] (modified) and hidden
  // [hidden], or chosen by a runner. Returns the finish reason, kNone if the response continues. Throws Error if no
  // token is allowed; the caller then ends the response.
  FinishReason advance(Sampler& sampler, float* logits, const float* hidden);
  FinishReason advance(const SampledToken& chosen);

  // Stores outputs of prompt tokens.
  void take_prompt_outputs(int first, int count, const float* logits, const float* hidden) {
    prompt_outputs_.take(tokens_, first, count, logits, hidden, unsent_);
  }

  // ---- its end ----

  // The stop token that ended the response and is not part of it; -1: none.
  int32_t stop_token() const { return stop_token_; }
  // Returns the output that can be sent now; with a finish reason, the rest. Null while there is none, or if all output
  // is sent at the end.
  std::optional<Output> take_output(FinishReason finish);

 private:
  static constexpr int kMaxForcedTokens = 256;  // of a step: finding them takes time of others

  std::vector<int32_t> forbidden_tokens(int position) const;
  const int32_t* mask_of_only(int32_t token);
  bool allows_nothing() const;
  bool is_ended_by(int32_t token);
  void report(int32_t token, const std::vector<float>& logits, const float* hidden);
  FinishReason append(int32_t token);
  bool is_endless(int32_t token);
  FinishReason append_and_jump(int32_t token);

  std::shared_ptr<const GenerationRules> rules_;
  std::vector<int32_t>& tokens_;  // prompt, then response
  int index_;
  SamplingMetadata choice_;
  Penalties penalties_;
  BadWords::States bad_word_states_;
  ThinkingBudget thinking_;
  RepetitionDetector repetition_;  // of the reasoning, or of what comes after it
  std::vector<int32_t> only_;      // a mask that allows only the forced token
  std::unique_ptr<GrammarMatcher> matcher_;
  TextStream text_;
  PromptOutputs prompt_outputs_;
  Output unsent_;
  int32_t stop_token_ = -1;
};

}  // namespace turbomind
