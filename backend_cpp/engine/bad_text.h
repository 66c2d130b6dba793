// Strings that must not come about in an answer, however they are cut into tokens.
//
// A token is forbidden when its bytes, after the text so far, would complete one of the strings. Which tokens those are
// depends only on how much of a string has come already, so the list is made once for each such state.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/string_matcher.h"
#include "engine/token_table.h"

namespace turbomind {

class BadText {
 public:
  BadText(const std::vector<std::string>& words, const TokenTable& tokens);

  void advance(std::string_view bytes);
  // Appends the tokens that are forbidden now.
  void append_forbidden(std::vector<int32_t>& tokens);

 private:
  struct Word {
    StringMatcher matcher;
    std::map<int, std::vector<int32_t>> forbidden;  // by the matcher's state
  };

  std::vector<int32_t> completing_tokens(const Word& word) const;

  const TokenTable* tokens_;
  std::vector<Word> words_;
};

}  // namespace turbomind
