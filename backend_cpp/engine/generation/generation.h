// One response of a request: its next token, what that means as text, when it ends, and what its caller has not been
// sent.
//
// A token comes from the model's logits, chosen here, or from a runner that chooses by choice(). Either way it goes
// through penalties, what is forbidden and the grammar before it is chosen, and through grammar, text and limits after.
//
// Knows nothing of blocks, steps or other responses. Used by the step thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/token_choice.h"
#include "engine/generation/generation_rules.h"
#include "engine/generation/penalties.h"
#include "engine/generation/prompt_outputs.h"
#include "engine/generation/sampler.h"
#include "engine/generation/text_stream.h"
#include "engine/generation/thinking_budget.h"
#include "engine/request.h"

namespace turbomind {

class Generation {
 public:
  // `tokens` holds the prompt, gets the response's tokens, and must outlive the response. Responses to one request
  // differ in `index`; each draws from its own random stream, made of `seed`. `sequence` is TokenChoice::sequence.
  Generation(std::shared_ptr<const GenerationRules> rules, int index, uint64_t seed, uint64_t sequence,
             std::vector<int32_t>& tokens);
  Generation(const Generation&) = delete;

  // Tokens it has.
  int generated() const { return static_cast<int>(tokens_.size()) - rules_->prompt_len; }

  // ---- the next token ----

  // Whether only this class can choose it: somebody looks at its logits.
  bool needs_logits() const;
  // Whether what may come next depends on which tokens came before.
  bool needs_known_tokens() const {
    return matcher_ != nullptr || thinking_.is_open() || rules_->bad_words.depends_on_tokens();
  }
  // Whether it continues from token to token at once, so that logits after drafted tokens can be of use.
  bool can_take_drafts() const {
    return generated() > 0 && !waits_for_grammar() && (!matcher_ || matcher_->knows_at_once());
  }
  // Text that its grammar lets come alone, as far as that is known.
  std::string forced_text() { return matcher_ ? matcher_->forced_text(kMaxForcedBytes) : std::string(); }
  // Whether what may come next is known, so that there is a choice().
  bool knows_choice();
  // How a runner is to choose the token after those known and `unseen` more. Valid until the next call.
  const TokenChoice& choice(int in_flight);

  // Takes the next token, and those after it that a grammar leaves no choice about: chosen from its logits
  // [vocab] (changed) and hidden [hidden], or by a runner. Returns why the response ends, kNone where it continues.
  // Throws Error where no token can come; the response is then to be ended.
  FinishReason advance(Sampler& sampler, float* logits, const float* hidden);
  FinishReason advance(const ChosenToken& chosen);

  // Whether it has logits and does not know yet what its grammar allows: it sits out steps until can_resume(). resume()
  // is then advance() with those.
  bool waits_for_grammar() const { return !kept_logits_.empty(); }
  bool can_resume();
  FinishReason resume(Sampler& sampler);

  // Takes what was computed of its prompt (engine/generation/prompt_outputs.h).
  void take_prompt_outputs(int first, int count, const float* logits, const float* hidden) {
    prompt_outputs_.take(tokens_, first, count, logits, hidden, unsent_);
  }

  // ---- its end ----

  // The token that ended it and is not part of it; -1: none.
  int32_t stop_token() const { return stop_token_; }
  // What can be sent and was not; with a reason, the rest. Null while all is to be sent at the end.
  std::optional<Output> take_output(FinishReason finish);

 private:
  static constexpr size_t kMaxForcedBytes = 64;

  std::vector<int32_t> forbidden_tokens(int position) const;
  const int32_t* mask_of_only(int32_t token);
  FinishReason wait_for_grammar(const float* logits, const float* hidden);
  bool is_complete(const GrammarState& state) const;
  bool is_ended_by(int32_t token);
  FinishReason append(int32_t token);
  FinishReason append_and_jump(int32_t token);
  FinishReason jump_forward();

  std::shared_ptr<const GenerationRules> rules_;
  std::vector<int32_t>& tokens_;  // prompt, then response
  int index_;
  TokenChoice choice_;
  Penalties penalties_;
  BadWords::States bad_word_states_;
  ThinkingBudget thinking_;
  std::vector<int32_t> only_;  // the mask that leaves the token that has to come
  std::unique_ptr<GrammarMatcher> matcher_;
  // The logits that wait for what matcher_ allows; empty: none does.
  std::vector<float> kept_logits_;
  std::vector<float> kept_hidden_;
  TextStream text_;
  PromptOutputs prompt_outputs_;
  Output unsent_;
  int32_t stop_token_ = -1;
};

}  // namespace turbomind
