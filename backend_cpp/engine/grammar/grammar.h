// Constrains responses to a grammar: JSON schema, regular expression or EBNF.
//
// Separate processes parse formats (engine/grammar/process_compiler.h) before the step thread gets their requests;
// token masks are then computed on demand.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace turbomind {

// The allowed next tokens in a grammar state; shared by responses in that state.
struct GrammarState {
  // The token bitmask; stop tokens are allowed where the grammar may end. (vocab_size + 31) / 32 words; empty when the
  // response is complete.
  std::vector<int32_t> mask;
  int32_t only_token = -1;   // the only allowed token; -1: none or several
  bool is_finished = false;  // the response is complete; only without stop tokens, which end a response otherwise
};

// Follows one response through its grammar. Used by the step thread.
class GrammarMatcher {
 public:
  virtual ~GrammarMatcher() = default;

  // The allowed next tokens. Valid until accept().
  virtual const GrammarState& state() = 0;
  // Advances by a token that state() allows. Throws Error if the next state exceeds the budget.
  virtual void accept(int32_t token) = 0;
};

// A parsed grammar, shared by responses.
class Grammar {
 public:
  virtual ~Grammar() = default;
  // The step thread. `fixes_spelling`: text that the grammar forces may only come in the tokens that a tokenizer writes
  // it with (TokenTrie::encode). Throws Error.
  virtual std::unique_ptr<GrammarMatcher> new_matcher(const std::vector<int32_t>& stop_token_ids,
                                                      bool fixes_spelling) const = 0;
};

// Compiles response formats; equal ones once.
class GrammarCompiler {
 public:
  // Callbacks of a running compilation.
  struct Waiting {
    std::function<bool()> is_needed;         // called regularly; false cancels it
    std::function<bool()> may_take_long;     // called once if it is slow; false requeues it
    std::function<void()> on_begin = [] {};  // called once, unless the grammar is cached
  };

  virtual ~GrammarCompiler() = default;
  // `response_format` is the JSON text of turbomind/config.pbtxt, never of type "text". Throws Error, kInvalidArgument
  // with the reason; null: requeued or cancelled. May take long; any thread.
  virtual std::shared_ptr<const Grammar> compile(const std::string& response_format, const Waiting& waiting) = 0;
};

}  // namespace turbomind
