// xgrammar's compiled core, reached through TVM-FFI out of the two packages' wheels.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace turbomind {

// Tokens that stand for a mark, and its text.
using SpecialTokens = std::vector<std::pair<int32_t, std::string>>;

// Follows a response.
class TokenMatcher {
 public:
  virtual ~TokenMatcher() = default;
  // False: the grammar does not allow it.
  virtual bool accept(int32_t token) = 0;
  // Nothing may follow; only without stop tokens.
  virtual bool is_finished() = 0;
  // A bit a token that may come; (vocab_size + 31) / 32 words.
  virtual void fill_mask(std::vector<int32_t>& mask) = 0;
};

// A format that was read.
class Format {
 public:
  virtual ~Format() = default;
  // Whether no token with a control character may come, also where source() has them.
  virtual bool is_printable() const = 0;
  // The grammar as xgrammar writes it (grammar/grammar_program.h).
  virtual std::string source() const = 0;
  // Special tokens that stand for their texts in it.
  virtual const SpecialTokens& marks() const = 0;
  // To be called once, before what is below. May take long. Throws Error(kInvalidArgument).
  virtual void compile() = 0;
  virtual size_t bytes() const = 0;
  virtual std::unique_ptr<TokenMatcher> new_matcher(const std::vector<int32_t>& stop_token_ids) const = 0;
};

class FormatCompiler {
 public:
  virtual ~FormatCompiler() = default;
  // `response_format`: the JSON text of turbomind/config.pbtxt. Throws Error(kInvalidArgument).
  virtual std::unique_ptr<Format> read(const std::string& response_format) = 0;
  // The grammar of a regular expression, as Format::source() has it.
  virtual std::string source_of_regex(const std::string& regex) = 0;
};

// Loads xgrammar and has it read the vocabulary, in which special tokens have no text. Throws Error.
std::unique_ptr<FormatCompiler> load_xgrammar(const std::vector<std::string>& vocabulary, const SpecialTokens& special,
                                              const std::vector<int32_t>& stop_token_ids);

}  // namespace turbomind
