#include "engine/generation/bad_words.h"

#include <algorithm>
#include <cstddef>

namespace turbomind {

BadWords::BadWords(const std::vector<std::string>& texts, const std::vector<std::vector<int32_t>>& sequences,
                   const TokenTable& table)
    : sequences_(sequences), table_(table) {
  for (const std::string& text : texts) texts_.push_back({StringPattern(text), {}});
}

void BadWords::advance(States& states, std::string_view bytes) const {
  for (size_t i = 0; i < texts_.size(); ++i) {
    for (const char byte : bytes) states[i] = texts_[i].pattern.next(states[i], byte);
  }
}

void BadWords::append_forbidden(const States& states, const std::vector<int32_t>& tokens,
                                std::vector<int32_t>& forbidden) const {
  for (size_t i = 0; i < texts_.size(); ++i) {
    const std::vector<int32_t>& completing = completing_tokens(texts_[i], states[i]);
    forbidden.insert(forbidden.end(), completing.begin(), completing.end());
  }
  for (const std::vector<int32_t>& sequence : sequences_) {
    const size_t before = sequence.size() - 1;
    if (before <= tokens.size() &&
        std::equal(sequence.begin(), sequence.end() - 1, tokens.end() - static_cast<ptrdiff_t>(before))) {
      forbidden.push_back(sequence.back());
    }
  }
}

bool BadWords::depends_on_tokens() const {
  return !texts_.empty() || std::ranges::any_of(sequences_, [](const auto& sequence) { return sequence.size() > 1; });
}

const std::vector<int32_t>& BadWords::completing_tokens(const Text& text, int state) const {
  const auto [it, is_new] = text.completing.try_emplace(state);
  if (!is_new) return it->second;
  for (int32_t token = 0; token < table_.size(); ++token) {
    int after = state;
    for (const char byte : table_.bytes(token)) {
      after = text.pattern.next(after, byte);
      if (!text.pattern.is_complete(after)) continue;
      it->second.push_back(token);
      break;
    }
  }
  return it->second;
}

}  // namespace turbomind
