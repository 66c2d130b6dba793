// A structural tag as xgrammar is to read it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"

namespace turbomind {

struct FormatText {
  std::string text;                   // JSON
  std::vector<std::string> regexes;   // that are parts of a structural tag
  std::vector<std::string> grammars;  // the same
};

// The number of a token that a structural tag names by its text. Throws Error(kInvalidArgument).
using TokenNumber = std::function<int32_t(const std::string& text)>;

// Tokens by number, since xgrammar would want the vocabulary for texts.
FormatText format_text(const Json& tag, const TokenNumber& token_number);

}  // namespace turbomind
