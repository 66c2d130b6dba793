// Constrains responses to a grammar: JSON schema, regular expression or EBNF.
//
// Formats are read in processes of their own (engine/grammar/process_compiler.h), before the step thread has their
// requests; what may come next is then found when it is asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace turbomind {

// A place in a grammar, as far as what may come next. Responses at the same place share it.
struct GrammarState {
  // A bit a token that may come next; tokens that end the response are allowed where the grammar may end.
  // (vocab_size + 31) / 32 words; none when the response is complete.
  std::vector<int32_t> mask;
  int32_t only_token = -1;   // the one that may come; -1: none or several
  bool is_finished = false;  // the response is complete; only without stop tokens, which end a response otherwise
};

// The only token that a mask allows, or -1 when there are none or several.
int32_t only_token(const std::vector<int32_t>& mask);

// Follows one response through its grammar. Used by the step thread.
class GrammarMatcher {
 public:
  virtual ~GrammarMatcher() = default;

  // What may come next. Valid until accept().
  virtual const GrammarState& state() = 0;
  // Text that has to come next, as far as that is seen: at most `most` bytes.
  virtual std::string forced_text(size_t most) {
    static_cast<void>(most);
    return {};
  }
  // Takes the chosen token, one that state() allows. Throws Error where it takes too much to say what comes then.
  virtual void accept(int32_t token) = 0;
};

// A compiled grammar, shared by responses.
class Grammar {
 public:
  virtual ~Grammar() = default;
  // The step thread. Throws Error.
  virtual std::unique_ptr<GrammarMatcher> new_matcher(const std::vector<int32_t>& stop_token_ids) const = 0;
};

// Compiles response formats; equal ones once.
class GrammarCompiler {
 public:
  // What a compilation under way asks of those who wait for it.
  struct Waiting {
    std::function<bool()> is_wanted;         // now and then; false ends it
    std::function<bool()> may_take_long;     // once, when it takes long; false sets it back
    std::function<void()> on_begin = [] {};  // once, unless the grammar is there already
  };

  virtual ~GrammarCompiler() = default;
  // `response_format` is the JSON text of turbomind/config.pbtxt, never of type "text". Throws Error, kInvalidArgument
  // with what is wrong with it; null: set back, or not wanted any more. May take long; any thread.
  virtual std::shared_ptr<const Grammar> compile(const std::string& response_format, const Waiting& waiting) = 0;
};

}  // namespace turbomind
