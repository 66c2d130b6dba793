// EBNF and Lark grammars as xgrammar is to read them, and the places of what is wrong in them.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace turbomind {

struct GrammarText {
  std::string text;
  // Where a part begins in `text`, and where the same part begins in the user's grammar.
  std::vector<std::pair<size_t, size_t>> places = {{0, 0}};
};

// Regular expressions with their flags applied, in characters and classes of them alone; `substring_words` as chunks.
// Throws Error(kInvalidArgument) for what xgrammar would ignore, or would not name.
GrammarText lark_text(const std::string& grammar);

// Throws Error(kInvalidArgument) for what xgrammar would ignore.
GrammarText ebnf_text(const std::string& grammar);

// "response_format: line 3, column 7: message"; columns are counted in characters.
Error grammar_error(const std::string& grammar, size_t at, const std::string& message);

// The same of a message of xgrammar's reader, which has a place in `read.text`.
Error grammar_error(const std::string& grammar, const GrammarText& read, const std::string& message);

}  // namespace turbomind
