// Constrains answers to a grammar: JSON schema, regular expression or EBNF.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace turbomind {

// Follows one answer through its grammar. Used by the step thread.
class GrammarMatcher {
 public:
  virtual ~GrammarMatcher() = default;

  // Sets the bit of every token that may come next; tokens that end the answer are allowed where the grammar may end.
  // `mask` has (vocab_size + 31) / 32 words.
  virtual void fill_mask(std::vector<int32_t>& mask) = 0;
  // Takes the chosen token. False when the grammar does not allow it.
  virtual bool accept(int32_t token) = 0;
  // Whether the answer is complete and nothing may follow; only without stop tokens, which end an answer otherwise.
  virtual bool is_finished() = 0;
};

// A compiled grammar, shared by answers. Any thread.
class Grammar {
 public:
  virtual ~Grammar() = default;
  virtual std::unique_ptr<GrammarMatcher> new_matcher(const std::vector<int32_t>& stop_token_ids) const = 0;
};

// Compiles response formats; equal ones once.
class GrammarCompiler {
 public:
  virtual ~GrammarCompiler() = default;
  // `response_format` is the JSON text of turbomind/config.pbtxt, never of type "text". Throws Error(kInvalidArgument)
  // with what is wrong with it. May take long; called by one thread at a time.
  virtual std::shared_ptr<const Grammar> compile(const std::string& response_format) = 0;
};

}  // namespace turbomind
