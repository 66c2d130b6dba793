#include "engine/bad_text.h"

namespace turbomind {

BadText::BadText(const std::vector<std::string>& words, const TokenTable& tokens) : tokens_(&tokens) {
  for (const std::string& word : words) words_.push_back({StringMatcher(word), {}});
}

void BadText::advance(std::string_view bytes) {
  for (Word& word : words_) {
    for (const char byte : bytes) word.matcher.advance(byte);
  }
}

void BadText::append_forbidden(std::vector<int32_t>& tokens) {
  for (Word& word : words_) {
    auto [it, is_new] = word.forbidden.try_emplace(word.matcher.state());
    if (is_new) it->second = completing_tokens(word);
    tokens.insert(tokens.end(), it->second.begin(), it->second.end());
  }
}

std::vector<int32_t> BadText::completing_tokens(const Word& word) const {
  std::vector<int32_t> completing;
  for (int32_t token = 0; token < tokens_->size(); ++token) {
    int state = word.matcher.state();
    for (const char byte : tokens_->bytes(token)) {
      state = word.matcher.next(state, byte);
      if (state == word.matcher.length()) {
        completing.push_back(token);
        break;
      }
    }
  }
  return completing;
}

}  // namespace turbomind
