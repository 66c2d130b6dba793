#include "engine/string_matcher.h"

#include <utility>

namespace turbomind {

StringMatcher::StringMatcher(std::string word) : word_(std::move(word)), failure_(word_.size(), 0) {
  for (size_t i = 1; i < word_.size(); ++i) failure_[i] = next(failure_[i - 1], word_[i]);
}

int StringMatcher::next(int state, char byte) const {
  while (state > 0 && (state == length() || word_[static_cast<size_t>(state)] != byte))
    state = failure_[static_cast<size_t>(state) - 1];
  return word_[static_cast<size_t>(state)] == byte ? state + 1 : 0;
}

}  // namespace turbomind
