// Sources of drafts for a model: draft models and draft heads.
//
// Used by the step thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/generation/generation.h"
#include "engine/speculative/prompt_lookup.h"
#include "model/model_runner.h"

namespace turbomind {

// Of one sequence: the model's hidden states of its last tokens, as input of a head.
struct HiddenStates {
  int begin = -1;             // position of the first token ever seen, -1: none
  int first = 0;              // position of the first of those kept
  std::vector<float> states;  // [count, HeadTraits::width]
};

// Of one sequence.
struct Drafts {
  std::vector<int32_t> tokens;  // draft tokens of the step being built or run
  bool are_the_models = false;  // `tokens` are from the draft model or head
  std::unique_ptr<PromptLookup> lookup;
  int cached = 0;              // leading tokens that the draft model or head has computed
  std::vector<int32_t> cache;  // tokens in the cache of a draft model
  HiddenStates hidden;         // a head's

  int count() const { return static_cast<int>(tokens.size()); }
};

// The maximum tokens of a drafter's step, given the model's: more would take memory from the cache.
constexpr int max_drafter_tokens(int max_step_tokens) {
  return std::min(max_step_tokens, 1024);
}

class Drafter {
 public:
  // A sequence that may get drafts.
  struct Candidate {
    const std::vector<int32_t>& tokens;  // prompt, then response
    int prompt_len;
    uint64_t scope;  // of other sequences' texts that it may be drafted from
    Drafts& drafts;  // empty; output: tokens and cached
    int max_drafts;  // limit for this sequence
    // For a drafter; null: it does not draft for this sequence.
    const PageTables* tables = nullptr;  // with room for the tokens and all drafts but the last
    int cached_tokens = 0;               // leading tokens of a prefix hit
    Generation* generation = nullptr;
  };
  // Results of the target model for a sequence in a step.
  struct Seen {
    const StepSpan& span;
    const std::vector<int32_t>& tokens;  // of the sequence, without the step's drafts
    HiddenStates& hidden;
  };

  // `runner` must outlive this. `vocab_size`: of the target model; drafts from it on are outside its vocabulary.
  Drafter(ModelRunner& runner, int max_tokens, int vocab_size)
      : runner_(runner), max_tokens_(max_tokens), vocab_size_(vocab_size) {}
  virtual ~Drafter() = default;

  // The number of tokens to run before the first draft for a sequence.
  virtual int missing_tokens(const Candidate& of) = 0;
  // Drafts `count` tokens for each; fewer after a draft outside the model's vocabulary, or without hidden states.
  virtual void draft(std::span<const Candidate> all, int count) = 0;
  // Receives a step's hidden states; token_hidden [tokens of the step, width] as in StepOutput.
  virtual void see(std::span<const Seen> /*all*/, const float* /*token_hidden*/) {}

 protected:
  // Tokens of a sequence to run.
  struct Due {
    const int32_t* tokens;  // [count]; of a head, the tokens that follow
    int count;
    int first_position;
    const PageTables* tables;
    bool needs_output;              // the last token's output
    const float* hidden = nullptr;  // [count, width]: a head's
    int prompt_len = 0;             // as in StepSpan; 0: all tokens so far
  };
  // Receives the logits (writable) and the hidden state of the last token of all[index].
  using OnLast = std::function<void(size_t index, float* logits, const float* hidden)>;
  // `width`: of each hidden state, 0: there are none; `continues_states`: the states are the head's own.
  void run(std::span<const Due> all, int width, bool continues_states, const OnLast& on_last);

  // A sequence that has one draft.
  struct Link {
    const Candidate* of;
    int position;    // of the draft
    int prompt_len;  // as in StepSpan; 0: all tokens so far
  };
  // Whether the device samples tokens. Then a step of one token a sequence is launched before the tokens of the
  // previous step are known, so that the device does not wait for the host.
  bool can_chain() { return runner_.traits().samples_on_device && runner_.reserve({}); }
  // Drafts up to `count` more tokens for each; fewer after a draft outside the vocabulary. `hidden`
  // [links, hidden_size]: a head's hidden states of the first drafts; empty for a draft model.
  void chain(std::span<const Link> links, std::vector<float> hidden, int count);

  ModelRunner& runner_;
  const int max_tokens_;
  const int vocab_size_;
};

// A draft model with the tokenizer of the target model.
std::unique_ptr<Drafter> make_draft_model(ModelRunner& runner, int max_tokens, int vocab_size);
// A draft head such as EAGLE or MTP (model/head_input.h).
std::unique_ptr<Drafter> make_draft_head(ModelRunner& runner, int max_tokens, int vocab_size);

}  // namespace turbomind
