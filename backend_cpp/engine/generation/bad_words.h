// Bad words: token sequences, and strings under any tokenization, that must not occur in a response.
//
// A token is forbidden if it would complete a sequence, or if its bytes would complete a string after the text so far.
// The tokens that complete a string depend only on how much of it has been matched, so they are listed once for each
// such state. The responses to one request share these lists; each has its own states.
//
// Used by the step thread only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/generation/text_stream.h"
#include "engine/generation/token_table.h"

namespace turbomind {

class BadWords {
 public:
  // All arguments must outlive this.
  BadWords(const std::vector<std::string>& texts, const std::vector<std::vector<int32_t>>& sequences,
           const TokenTable& table);

  // How much of each string the end of a response's text matches.
  using States = std::vector<int>;
  States begin() const { return States(texts_.size(), 0); }
  void advance(States& states, std::string_view bytes) const;

  // Appends the tokens that are forbidden after `tokens` and text in these states.
  void append_forbidden(const States& states, const std::vector<int32_t>& tokens,
                        std::vector<int32_t>& forbidden) const;
  // Whether that depends on the tokens so far.
  bool depends_on_tokens() const;

 private:
  struct Text {
    StringPattern pattern;
    mutable std::unordered_map<int, std::vector<int32_t>> completing;  // tokens, by state; filled when first needed
  };

  const std::vector<int32_t>& completing_tokens(const Text& text, int state) const;

  std::vector<Text> texts_;
  const std::vector<std::vector<int32_t>>& sequences_;
  const TokenTable& table_;
};

}  // namespace turbomind
